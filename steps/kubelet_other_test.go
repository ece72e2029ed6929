package steps

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// process is a process of the node that runs a program.
func (n *kubeletNode) process(pid int, program, mounts string) {
	n.t.Helper()
	dir := filepath.Join(n.root, "proc", fmt.Sprint(pid))
	for name, text := range map[string]string{"exe": n.root + program, "ns/mnt": "mnt:[" + mounts + "]"} {
		link := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
			n.t.Fatal(err)
		}
		_ = os.Remove(link)
		if err := os.Symlink(text, link); err != nil {
			n.t.Fatal(err)
		}
	}
	n.stat(pid, time.Hour)
}

func TestTwoKubelets(t *testing.T) {
	link := func(n *kubeletNode, target, name string) {
		n.t.Helper()
		if err := os.MkdirAll(filepath.Dir(n.root+name), 0o755); err != nil {
			n.t.Fatal(err)
		}
		if err := os.Symlink(target, n.root+name); err != nil {
			n.t.Fatal(err)
		}
	}
	host := func(n *kubeletNode) {
		n.process(1, "/usr/lib/systemd/systemd", "1")
		n.process(100, "/usr/bin/kubelet", "1")
	}
	for _, tc := range []struct {
		name string
		set  func(*kubeletNode)
		want []string // reason, hint, …
	}{
		{"one", host, nil},
		{"processes that cannot be told", func(*kubeletNode) {}, nil},
		{
			"another file", func(n *kubeletNode) { n.write("/usr/local/bin/kubelet", "kubelet v1.30.0") },
			[]string{
				"two kubelets: kubelet.service starts /usr/bin/kubelet, and /usr/local/bin/kubelet is another one, which would stay as it is and which kubeadm may find on its PATH",
				"systemctl cat kubelet.service; if /usr/bin/kubelet is the right one: ln -sf /usr/bin/kubelet /usr/local/bin/kubelet",
			},
		},
		{"another file that is the new one", func(n *kubeletNode) { n.write("/sbin/kubelet", newKubelet) }, []string{
			"two kubelets: kubelet.service starts /usr/bin/kubelet, and /sbin/kubelet is another one, which would stay as it is and which kubeadm may find on its PATH",
			"systemctl cat kubelet.service; if /usr/bin/kubelet is the right one: ln -sf /usr/bin/kubelet /sbin/kubelet",
		}},
		{"a link to it", func(n *kubeletNode) { link(n, "../../bin/kubelet", "/usr/local/bin/kubelet") }, nil},
		{"one /usr for all", func(n *kubeletNode) { link(n, "usr/bin", "/bin") }, nil},
		{
			"the unit's program is a link, and what it leads to is on the PATH too", func(n *kubeletNode) {
				if err := os.Rename(n.root+"/usr/bin/kubelet", n.root+"/usr/local/bin/kubelet"); err != nil {
					n.t.Fatal(err)
				}
				link(n, "/usr/local/bin/kubelet", "/usr/bin/kubelet")
				n.process(1, "/usr/lib/systemd/systemd", "1")
				n.process(100, "/usr/local/bin/kubelet", "1")
			}, nil,
		},
		{"a hard link", func(n *kubeletNode) {
			if err := os.Link(n.root+"/usr/bin/kubelet", n.root+"/usr/local/bin/kubelet"); err != nil {
				n.t.Fatal(err)
			}
		}, []string{
			"two kubelets: kubelet.service starts /usr/bin/kubelet, and /usr/local/bin/kubelet is a hard link to it, which would stay the old one",
			"systemctl cat kubelet.service; if /usr/bin/kubelet is the right one: ln -sf /usr/bin/kubelet /usr/local/bin/kubelet",
		}},
		{"no program", func(n *kubeletNode) {
			n.write("/usr/local/bin/kubelet", "notes")
			if err := os.Chmod(n.root+"/usr/local/bin/kubelet", 0o644); err != nil {
				n.t.Fatal(err)
			}
		}, nil},
		{"a directory", func(n *kubeletNode) { n.write("/usr/local/bin/kubelet/x", "") }, nil},
		{"another process", func(n *kubeletNode) { host(n); n.process(4711, "/opt/kubelet", "1") }, []string{
			"two kubelets: process 4711 runs /opt/kubelet, and is not that of kubelet.service", "systemctl status 4711; stop what started it",
		}},
		{"another process of the same file", func(n *kubeletNode) { host(n); n.process(4711, "/usr/bin/kubelet", "1") }, []string{
			"two kubelets: process 4711 runs /usr/bin/kubelet, and is not that of kubelet.service", "systemctl status 4711; stop what started it",
		}},
		{"a container's", func(n *kubeletNode) { host(n); n.process(4711, "/kubelet", "2") }, nil},
		{"one that ends at once", func(n *kubeletNode) {
			host(n)
			n.process(4711, "/usr/bin/kubelet", "1")
			n.slept = func() { _ = os.RemoveAll(n.root + "/proc/4711") }
		}, nil},
		{"one that becomes another program", func(n *kubeletNode) {
			host(n)
			n.process(4711, "/usr/bin/kubelet", "1")
			n.slept = func() { n.process(4711, "/usr/bin/mount", "1") }
		}, nil},
		{"the unit runs another file", func(n *kubeletNode) { host(n); n.process(100, "/opt/kubelet-1.34/kubelet", "1") }, []string{
			"two kubelets: kubelet.service starts /usr/bin/kubelet, but what runs is /opt/kubelet-1.34/kubelet",
			"systemctl cat kubelet.service; when that is what it should start: systemctl restart kubelet.service",
		}},
		{"the unit's file was replaced", func(n *kubeletNode) { host(n); n.process(100, "/usr/bin/kubelet (deleted)", "1") }, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := newKubeletNode(t)
			tc.set(n)
			found, err := (&kubeletUpgrade{}).find(t.Context(), n.env)
			if err != nil {
				t.Fatal(err)
			}
			blocks, err := otherKubelets(t.Context(), n.env, found)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, b := range blocks {
				got = append(got, b.Reason, b.Hint)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// A step with another kubelet beside is refused by Check, and by Run, which may
// be called without it; one that is at the target is not.
func TestTheStepRefusesTwoKubelets(t *testing.T) {
	n := newKubeletNode(t)
	n.write("/usr/local/bin/kubelet", "kubelet v1.30.0")
	state, err := n.step.Check(t.Context(), n.env)
	if err != nil || state.Phase != Blocked || len(state.Blocks) != 1 {
		t.Errorf("%+v, %v", state, err)
	}
	_, stops := n.units.Count(kubeletUnit)
	if err := n.step.Run(t.Context(), n.env); ExitCode(err) != ExitBlocked || !strings.Contains(err.Error(), "two kubelets") {
		t.Errorf("exit %d: %v", ExitCode(err), err)
	}
	if _, again := n.units.Count(kubeletUnit); again != stops || n.read("/usr/bin/kubelet") != oldKubelet {
		t.Error("it was stopped or replaced")
	}
	upgradeKubelet(n)
	if state, err := n.step.Check(t.Context(), n.env); err != nil || state.Phase != Done {
		t.Errorf("at the target: %+v, %v", state, err)
	}
}
