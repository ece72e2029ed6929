package steps

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

// plugins puts plugins into a directory; a plugin prints what it is.
func (n *containerdNode) plugins(dir string, plugins map[string]string) {
	n.t.Helper()
	for name, banner := range plugins {
		n.write(filepath.Join(dir, name), banner, 0o755)
		n.commands.On(filepath.Join(dir, name), func(hostexec.Command) (string, error) {
			return "", &hostexec.CommandError{Argv: []string{name}, Code: 1, Stderr: n.read(filepath.Join(dir, name)), Err: errors.New("exit status 1")}
		})
	}
}

func (n *containerdNode) dir(dir string) map[string]string {
	n.t.Helper()
	entries, err := os.ReadDir(filepath.Join(n.root, dir))
	n.must(err)
	files := map[string]string{}
	for _, e := range entries {
		files[e.Name()] = n.read(filepath.Join(dir, e.Name()))
	}
	return files
}

func (n *containerdNode) checkCNI() State {
	n.t.Helper()
	state, err := checkCNIPlugins(n.t.Context(), n.env)
	n.must(err)
	return state
}

const (
	newBridge  = "CNI bridge plugin v1.9.1"
	newPortmap = "CNI portmap plugin v1.9.1"
)

func TestCNIPlugins(t *testing.T) {
	for name, c := range map[string]struct{ before, after map[string]string }{
		"old ones are replaced, foreign ones stay": {
			map[string]string{"bridge": "CNI bridge plugin v1.1.1", "portmap": "CNI portmap plugin version unknown\nCNI protocol versions supported: 0.1.0, 1.9.2", "calico": "foreign"},
			map[string]string{"bridge": newBridge, "portmap": newPortmap, "calico": "foreign"},
		},
		"missing ones are added": {
			map[string]string{"bridge": "CNI bridge plugin v1.1.1\nCNI protocol versions supported: 0.1.0, 1.0.0"},
			map[string]string{"bridge": newBridge, "portmap": newPortmap},
		},
		"a newer one stays": {
			map[string]string{"bridge": "CNI bridge plugin v1.1.1", "portmap": "CNI portmap plugin v1.10.0"},
			map[string]string{"bridge": newBridge, "portmap": "CNI portmap plugin v1.10.0"},
		},
		"something else of that name is replaced": {
			map[string]string{"bridge": "usage: bridge"},
			map[string]string{"bridge": newBridge, "portmap": newPortmap},
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newContainerdNode(t)
			n.plugins("/opt/cni/bin", c.before)
			if state := n.checkCNI(); state.Phase != Needed {
				t.Errorf("check: %+v", state)
			}
			n.must(runCNIPlugins(t.Context(), n.env))
			if diff := cmp.Diff(c.after, n.dir("/opt/cni/bin")); diff != "" {
				t.Error(diff)
			}
			if state := n.checkCNI(); state.Phase != Done {
				t.Errorf("after: %+v", state)
			}
			if starts, stops := n.units.Count(containerdUnit); starts != 1 || stops != 0 {
				t.Error("containerd was restarted")
			}
		})
	}
}

func TestCNIPluginsBehindLinks(t *testing.T) {
	n := newContainerdNode(t)
	n.dumps["1.7.35"] = strings.Replace(oldDump, "/opt/cni/bin", "/srv/cni", 1)
	n.must(os.MkdirAll(filepath.Join(n.root, "srv"), 0o755))
	n.must(os.Symlink("/usr/lib/cni", filepath.Join(n.root, "srv/cni"))) // absolute, the host's own
	n.plugins("/usr/lib/cni", map[string]string{"all-in-one": "all"})
	n.plugins("/srv/cni", map[string]string{}) // through the link
	n.must(os.Symlink("all-in-one", filepath.Join(n.root, "usr/lib/cni/portmap")))
	n.must(runCNIPlugins(t.Context(), n.env))
	want := map[string]string{"all-in-one": "all", "bridge": newBridge, "portmap": "all"}
	if diff := cmp.Diff(want, n.dir("/usr/lib/cni")); diff != "" {
		t.Error(diff)
	}
	if state := n.checkCNI(); state.Phase != Done {
		t.Errorf("after: %+v", state)
	}
	if !strings.Contains(n.log.String(), "a link to /usr/lib/cni/all-in-one, left alone") {
		t.Errorf("log: %s", n.log)
	}
}

func TestCNIPluginsInSeveralDirectories(t *testing.T) {
	n := newContainerdNode(t)
	n.dumps["1.7.35"] = strings.Replace(newDump, "['/opt/cni/bin']", "['/opt/a', '/opt/b']", 1)
	n.plugins("/opt/b", map[string]string{"bridge": "CNI bridge plugin v1.1.1"})
	n.must(runCNIPlugins(t.Context(), n.env))
	if diff := cmp.Diff(map[string]string{"bridge": newBridge}, n.dir("/opt/b")); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[string]string{"portmap": newPortmap}, n.dir("/opt/a")); diff != "" {
		t.Error(diff)
	}
}
