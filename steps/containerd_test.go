package steps

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/node-upgrader/node-upgrader/hostexec"
	"github.com/node-upgrader/node-upgrader/steps/cri"
	"github.com/node-upgrader/node-upgrader/steps/cri/critest"
)

// newFiles is what installed returns after the upgrade.
func newFiles() map[string]string {
	return map[string]string{
		"containerd": "containerd 2.3.7", "containerd-shim-runc-v2": "shim 2.3.7", "ctr": "ctr 2.3.7", "runc": "runc 1.3.4",
	}
}

func TestContainerdIsReplaced(t *testing.T) {
	n := newContainerdNode(t)
	n.container("etcd", "etcd-n1", "etcd", 41)
	if got := n.check(); got.Phase != Needed || len(got.Changes) != 5 {
		t.Fatalf("before: %+v", got)
	}
	n.must(runContainerd(t.Context(), n.env))
	if diff := cmp.Diff(newFiles(), n.installed()); diff != "" {
		t.Error(diff)
	}
	if got := n.check(); got.Phase != Done {
		t.Errorf("after: %+v", got)
	}
	var changed []ChangedContainer
	if found, err := n.env.Record.Load(containersChanged, &changed); err != nil || !found || len(changed) != 0 {
		t.Errorf("containers-changed: %v %v %v", found, changed, err)
	}
	// Once more: nothing is touched.
	starts, stops := n.units.Count(containerdUnit)
	n.must(runContainerd(t.Context(), n.env))
	if s, p := n.units.Count(containerdUnit); s != starts || p != stops {
		t.Errorf("a second run restarted containerd")
	}
}

func TestContainerdOnlyRuncDiffers(t *testing.T) {
	n := newContainerdNode(t)
	n.must(runContainerd(t.Context(), n.env))
	starts, _ := n.units.Count(containerdUnit)
	n.write("/usr/local/sbin/runc", "runc 1.2.0", 0o755)
	want := []Change{{"replace", "/usr/local/sbin/runc"}}
	if got := n.check(); got.Phase != Needed || !cmp.Equal(got.Changes, want) {
		t.Errorf("check: %+v", got)
	}
	n.must(runContainerd(t.Context(), n.env))
	if diff := cmp.Diff(newFiles(), n.installed()); diff != "" {
		t.Error(diff)
	}
	if s, _ := n.units.Count(containerdUnit); s != starts {
		t.Error("containerd was restarted for runc")
	}
	if got := n.check(); got.Phase != Done {
		t.Errorf("after: %+v", got)
	}
}

func TestContainerdOnDiskIsNotDone(t *testing.T) {
	n := newContainerdNode(t)
	for name, content := range newFiles() { // as a run that was killed before the restart leaves it
		dir := "/usr/local/bin/"
		if name == "runc" {
			dir = "/usr/local/sbin/"
		}
		n.write(dir+name, content, 0o755)
	}
	if got := n.check(); got.Phase != Needed || !cmp.Equal(got.Changes, []Change{{"restart", containerdUnit}}) {
		t.Fatalf("check: %+v", got)
	}
	n.must(runContainerd(t.Context(), n.env))
	if got := n.check(); got.Phase != Done {
		t.Errorf("after: %+v", got)
	}
}

func TestContainerdBlocked(t *testing.T) {
	unit := func(change func(*hostexec.Unit)) func(*containerdNode) {
		return func(n *containerdNode) {
			u, err := n.units.Show(t.Context(), containerdUnit)
			n.must(err)
			change(&u)
			n.units.Put(u)
		}
	}
	for name, c := range map[string]struct {
		prepare func(*containerdNode)
		reasons []string
	}{
		"no unit":  {unit(func(u *hostexec.Unit) { u.LoadState = "not-found" }), []string{"no unit"}},
		"KillMode": {unit(func(u *hostexec.Unit) { u.KillMode = "control-group" }), []string{`KillMode "control-group"`}},
		"configuration rejected": {
			func(n *containerdNode) { delete(n.dumps, "2.3.7") },
			[]string{"containerd 2.3.7 does not accept /etc/containerd/config.toml: containerd: invalid disabled plugin URI"},
		},
		"cgroup driver flips": {
			func(n *containerdNode) {
				n.dumps["2.3.7"] = strings.Replace(newDump, "SystemdCgroup = true", "SystemdCgroup = false", 1)
			},
			[]string{"from systemd to cgroupfs"},
		},
		"downgrade": {
			func(n *containerdNode) {
				n.runtime.Change(func(s *critest.State) { s.Version = "2.4.0" })
			},
			[]string{"containerd 2.4.0 is newer than the bundle's 2.3.7"},
		},
		"mirrors": {
			func(n *containerdNode) {
				n.env.Bundle.Manifest.Components[0].Version = "v2.2.1"
				n.dumps["1.7.35"] += "\n[plugins.\"io.containerd.grpc.v1.cri\".registry.mirrors.\"docker.io\"]\nendpoint = [\"x\"]\n"
			},
			[]string{"registry mirrors"},
		},
		"not ready": {
			func(n *containerdNode) {
				n.runtime.Change(func(s *critest.State) { s.NotReady = errors.New("NetworkReady is false") })
			},
			[]string{"NetworkReady is false"},
		},
		"a shim that is gone": {
			func(n *containerdNode) {
				n.write("/run/containerd/io.containerd.runtime.v2.task/k8s.io/a/shim-binary-path", "/opt/old/containerd-shim-runc-v2", 0o600)
			},
			[]string{"/opt/old/containerd-shim-runc-v2 is gone, but in use by: container a"},
		},
		"all at once": {
			func(n *containerdNode) {
				delete(n.dumps, "2.3.7")
				unit(func(u *hostexec.Unit) { u.KillMode = "mixed" })(n)
			},
			[]string{`KillMode "mixed"`, "does not accept"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newContainerdNode(t)
			c.prepare(n)
			state := n.check()
			if state.Phase != Blocked || len(state.Blocks) != len(c.reasons) {
				t.Fatalf("check: %+v", state)
			}
			for i, b := range state.Blocks {
				if !strings.Contains(b.Reason, c.reasons[i]) || b.Hint == "" {
					t.Errorf("block %d: %+v, want %q", i, b, c.reasons[i])
				}
			}
			before := n.installed()
			if err := runContainerd(t.Context(), n.env); err == nil {
				t.Error("run was not refused")
			}
			if diff := cmp.Diff(before, n.installed()); diff != "" {
				t.Error(diff)
			}
			if _, stops := n.units.Count(containerdUnit); stops != 0 {
				t.Error("containerd was stopped")
			}
		})
	}
}

func TestContainerdRolledBack(t *testing.T) {
	for _, how := range []string{"fails", "hangs"} {
		t.Run(how, func(t *testing.T) {
			n := newContainerdNode(t)
			n.must(os.Remove(filepath.Join(n.root, "usr/local/bin/ctr")))
			n.spoil("containerd 2.3.7 " + how)
			err := runContainerd(t.Context(), n.env)
			var back *RolledBackError
			if !errors.As(err, &back) || ExitCode(err) != ExitRolledBack || len(Hints(err)) == 0 {
				t.Fatalf("error: %v", err)
			}
			want := map[string]string{
				"containerd": "containerd 1.7.35", "containerd-shim-runc-v2": "shim 1.7.35", "ctr": "", "runc": "runc 1.1.5",
			}
			if diff := cmp.Diff(want, n.installed()); diff != "" {
				t.Error(diff)
			}
			if u, _ := n.units.Show(t.Context(), containerdUnit); !u.Running() {
				t.Error("containerd was left stopped")
			}
			if pending, err := comparisonPending(n.env); pending || err != nil {
				t.Errorf("the containers were not compared: %v", err)
			}
		})
	}
}

// An attempt that dies between stop and start must not take what runs then for
// what ran before.
func TestContainerdResumes(t *testing.T) {
	n := newContainerdNode(t)
	lost := n.container("etcd", "etcd-n1", "etcd", 41)
	n.must(surveyContainers(t.Context(), n.env, n.unit().MainPID))
	n.must(n.units.Stop(t.Context(), containerdUnit))
	n.runtime.Change(func(s *critest.State) { s.Containers = nil })
	n.must(os.RemoveAll(filepath.Join(n.root, "proc/41")))
	n.process(51, 510, "etcd")
	again := lost
	again.ID, again.PID, again.Started = "etcd2", 51, 510
	n.units.OnStart(containerdUnit, func(pid int) error {
		n.runtime.Change(func(s *critest.State) { s.Containers = []cri.Container{again} })
		return n.start(pid)
	})
	n.must(runContainerd(t.Context(), n.env))
	if want := "container etcd of pod kube-system/etcd-n1: restarted (pid 41 → 51)"; !strings.Contains(n.log.String(), want) {
		t.Errorf("log: %s", n.log)
	}
	if got := n.check(); got.Phase != Done {
		t.Errorf("after: %+v", got)
	}
}

// An attempt that dies after the start leaves the comparison to the next.
func TestContainerdComparesLater(t *testing.T) {
	n := newContainerdNode(t)
	n.container("etcd", "etcd-n1", "etcd", 41)
	n.must(runContainerd(t.Context(), n.env))
	n.must(n.env.Record.Save(t.Context(), containersBefore, survey{
		Daemon: process{1, 2}, Containers: []cri.Container{{ID: "etcd", PID: 40, Namespace: "kube-system", Pod: "etcd-n1", Name: "etcd"}},
	}))
	if got := n.check(); got.Phase != Needed || got.Changes[0].Verb != "compare" {
		t.Fatalf("check: %+v", got)
	}
	n.must(runContainerd(t.Context(), n.env))
	if got := n.check(); got.Phase != Done {
		t.Errorf("after: %+v", got)
	}
	if !strings.Contains(n.log.String(), "restarted (pid 40 → 41)") {
		t.Errorf("log: %s", n.log)
	}
}

func (n *containerdNode) unit() hostexec.Unit {
	n.t.Helper()
	u, err := n.units.Show(n.t.Context(), containerdUnit)
	n.must(err)
	return u
}
