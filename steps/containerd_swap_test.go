package steps

import (
	"errors"
	"strings"
	"testing"
)

// What the new containerd has made is lost when the old one is put back: 1.7
// does not find where a shim of 2.x listens.
func TestContainerdRolledBackLosesWhatTheNewOneMade(t *testing.T) {
	for name, c := range map[string]struct {
		old  string
		lost bool
	}{
		"1.7": {"1.7.35", true},
		"2.2": {"2.2.3", false},
	} {
		t.Run(name, func(t *testing.T) {
			n := newContainerdNode(t)
			n.dumps[c.old] = n.dumps["1.7.35"]
			n.write("/usr/local/bin/containerd", "containerd "+c.old, 0o755)
			n.container("kept", "kube-proxy", "", 31)
			dir := "/run/containerd/io.containerd.runtime.v2.task/k8s.io/"
			n.write(dir+"kept/address", "unix:///run/containerd/s/kept", 0o600)
			n.write(dir+"kept/bootstrap.json", `{"protocol":"grpc"}`, 0o600)
			failed := false
			n.units.OnStart(containerdUnit, func(pid int) error {
				if failed {
					return n.start(pid)
				}
				failed = true // it comes up, a pod is made, and it dies
				n.process(61, 610, "app")
				n.write(dir+"made/bootstrap.json", `{"protocol":"grpc"}`, 0o600)
				n.write(dir+"made/init.pid", "61", 0o600)
				n.json(dir+"made/config.json", map[string]any{"annotations": map[string]string{
					"io.kubernetes.cri.sandbox-name": "web", "io.kubernetes.cri.sandbox-namespace": "default", "io.kubernetes.cri.container-name": "app",
				}})
				return errors.New("start containerd.service: no")
			})
			err := runContainerd(t.Context(), n.env)
			if got := n.installed()["containerd"]; got != "containerd "+c.old {
				t.Errorf("%s is installed", got)
			}
			var changed []ChangedContainer
			if _, err := n.env.Record.Load(containersChanged, &changed); err != nil {
				t.Fatal(err)
			}
			if !c.lost {
				if ExitCode(err) != ExitRolledBack || len(changed) != 0 {
					t.Errorf("exit %d, %v: %v", ExitCode(err), changed, err)
				}
				return
			}
			const who = "container app of pod default/web"
			if ExitCode(err) != ExitIncomplete || !strings.Contains(err.Error(), who) || strings.Contains(err.Error(), "kube-proxy") {
				t.Errorf("exit %d: %v", ExitCode(err), err)
			}
			if len(changed) != 1 || changed[0].String() != who+": lost" || changed[0].Started != 610 {
				t.Errorf("containers-changed: %+v", changed)
			}
			if state := n.check(); state.Phase != Blocked {
				t.Errorf("it would be tried again: %+v", state)
			}
			if !n.unit().Running() {
				t.Error("containerd was left stopped")
			}
		})
	}
}
