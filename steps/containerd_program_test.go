package steps

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// What is not containerd, or not runc, is not overwritten.
func TestContainerdOtherPrograms(t *testing.T) {
	link := func(n *containerdNode, from, to string) {
		n.write(to, "another program", 0o755)
		n.must(os.Remove(filepath.Join(n.root, from)))
		n.must(os.Symlink(to, filepath.Join(n.root, from)))
	}
	for name, c := range map[string]struct {
		prepare func(*containerdNode)
		reason  string // "" is not blocked
	}{
		"env": {
			func(n *containerdNode) {
				n.write("/usr/bin/env", "env", 0o755)
				n.execStart("/usr/bin/env", "containerd")
			},
			"containerd.service starts /usr/bin/env, which is not containerd",
		},
		"the shim's name": {
			func(n *containerdNode) { n.execStart("/usr/local/bin/containerd-shim-runc-v2") },
			"starts /usr/local/bin/containerd-shim-runc-v2, which is not containerd",
		},
		"another program runs": {
			func(n *containerdNode) {
				exe := filepath.Join(n.root, "proc", strconv.Itoa(n.unit().MainPID), "exe")
				n.write("/opt/k3s", "k3s", 0o755)
				n.must(os.Remove(exe))
				n.must(os.Symlink(filepath.Join(n.root, "opt/k3s"), exe))
			},
			"starts /usr/local/bin/containerd, but what runs is /opt/k3s",
		},
		"runc is crun": {
			func(n *containerdNode) { link(n, "/usr/local/sbin/runc", "/usr/bin/crun") },
			"/usr/local/sbin/runc is a link to /usr/bin/crun, which is not runc",
		},
		"runc is crun, and it is all that differs": {
			func(n *containerdNode) {
				n.must(runContainerd(n.t.Context(), n.env))
				link(n, "/usr/local/sbin/runc", "/usr/bin/crun")
			},
			"/usr/local/sbin/runc is a link to /usr/bin/crun, which is not runc",
		},
		"ctr is k3s": {
			func(n *containerdNode) { link(n, "/usr/local/bin/ctr", "/usr/local/bin/k3s") },
			"/usr/local/bin/ctr is a link to /usr/local/bin/k3s, which is not ctr",
		},
		"a versioned file": {
			func(n *containerdNode) { link(n, "/usr/local/sbin/runc", "/opt/runc.amd64") }, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newContainerdNode(t)
			c.prepare(n)
			files := n.programs()
			_, stops := n.units.Count(containerdUnit)
			state := n.check()
			if c.reason == "" {
				if state.Phase != Needed {
					t.Errorf("check: %+v", state)
				}
				return
			}
			if state.Phase != Blocked || len(state.Blocks) != 1 || !strings.Contains(state.Blocks[0].Reason, c.reason) || state.Blocks[0].Hint == "" {
				t.Fatalf("check: %+v", state)
			}
			if err := runContainerd(t.Context(), n.env); ExitCode(err) != ExitBlocked {
				t.Errorf("run: %v", err)
			}
			if diff := cmp.Diff(files, n.programs()); diff != "" {
				t.Error(diff)
			}
			if _, s := n.units.Count(containerdUnit); s != stops {
				t.Error("containerd was stopped")
			}
		})
	}
}

// programs is what lies below /usr: contents by path.
func (n *containerdNode) programs() map[string]string {
	n.t.Helper()
	files := map[string]string{}
	n.must(filepath.WalkDir(filepath.Join(n.root, "usr"), func(p string, e os.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			name := strings.TrimPrefix(p, n.root)
			files[name] = n.read(name)
		}
		return err
	}))
	return files
}
