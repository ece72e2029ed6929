package skeleton

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/node-upgrader/node-upgrader/steps"
)

func fresh(t *testing.T) (dir string, n *Node) {
	t.Helper()
	dir, err := Scratch()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if n, err = New(dir+"/node", steps.ControlPlane, "http://127.0.0.1:1"); err != nil {
		t.Fatal(err)
	}
	return dir, n
}

func (n *Node) mustTree(t *testing.T) Tree {
	t.Helper()
	tree, err := n.TreeOf(time.Now().AddDate(1, 0, 0))
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

// A clone is the same tree, and what a tree does not show, no table could find.
func TestTree(t *testing.T) {
	dir, n := fresh(t)
	before := n.mustTree(t)
	for name, change := range map[string]func(real string) error{
		"nothing":     func(string) error { return nil },
		"content":     func(real string) error { return os.WriteFile(real, []byte("x"), 0o600) },
		"mode":        func(real string) error { return os.Chmod(real, 0o750|os.ModeSetuid) },
		"time":        func(real string) error { return os.Chtimes(real, time.Time{}, time.Unix(1e9, 1)) },
		"absence":     os.Remove,
		"surplus":     func(real string) error { return os.WriteFile(real+".tmp", nil, 0o600) },
		"a directory": func(real string) error { return os.Mkdir(real+".d", 0o700) },
		"a link": func(real string) error {
			return errors.Join(os.Remove(real), os.Symlink("elsewhere", real))
		},
		"another name": func(real string) error { return os.Link(real, real+"-2") },
		"a broken pair": func(real string) error {
			return errors.Join(os.Rename(real, real+".old"), copyOf(real+".old", real), os.Remove(real+".old"))
		},
		"an attribute": func(real string) error {
			name, err := attributeOn(dir)
			return errors.Join(err, unix.Lsetxattr(real, name, []byte("another"), 0))
		},
		"no attribute": func(real string) error {
			name, err := attributeOn(dir)
			return errors.Join(err, unix.Lremovexattr(real, name))
		},
	} {
		t.Run(name, func(t *testing.T) {
			to := dir + "/" + strings.ReplaceAll(name, " ", "-")
			if err := Clone(dir+"/node", to); err != nil {
				t.Fatal(err)
			}
			clone, err := Open(to, nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := change(clone.in("/opt/kubernetes/1.35/kubelet")); err != nil {
				t.Fatal(err)
			}
			if diff := before.Diff(clone.mustTree(t)); (diff == "") != (name == "nothing") {
				t.Errorf("difference: %q", diff)
			}
		})
	}
}

// copyOf makes a file that differs from another only in that it is not the same.
func copyOf(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(to, data, 0o600), imitate(from, to, info))
}

// What a process leaves is what the next one finds.
func TestWorldOutlivesTheProcess(t *testing.T) {
	dir, n := fresh(t)
	if err := (units{n}).Stop(t.Context(), kubeletUnit); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(n.in(kubeletPath), []byte("kubelet "+NewKubernetes), 0o755); err != nil {
		t.Fatal(err)
	}
	again, err := Open(dir+"/node", nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Works(); err == nil {
		t.Error("a node without a kubelet works")
	}
	if err := (units{again}).Start(t.Context(), kubeletUnit); err != nil {
		t.Fatal(err)
	}
	if containerd, kubelet, err := again.Running(); err != nil || containerd != OldContainerd || kubelet != NewKubernetes {
		t.Errorf("containerd %s, kubelet %s, error %v", containerd, kubelet, err)
	}
	if err := again.Works(); err != nil {
		t.Error(err)
	}
}
