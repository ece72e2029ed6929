//go:build e2e && e2e_crash

package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/node-upgrader/node-upgrader/test/figures"
	"github.com/node-upgrader/node-upgrader/test/payload"
)

// The new controller-manager does not run. kubeadm does not see it: it waits for
// the pod and not for its health, and upgrades the rest. The step finds out, and
// the way back is the one that it names.
func TestControllerManagerDoesNotRun(t *testing.T) {
	t.Parallel()
	p := load(t)
	c, client := up(t, 0)
	cp := c.ControlPlane
	must(t, p.CopyTo(cp))
	must(t, p.ImportImages(t.Context(), cp))
	sh(t, cp, "ctr", "-n", "k8s.io", "images", "tag", "--force",
		"registry.k8s.io/pause:"+p.Target.Set.Pause, "registry.k8s.io/kube-controller-manager:v"+p.Target.Set.Kubernetes)
	before, files := versions(t, cp, client), nodeFiles(t, cp)
	keep(t, client, "before", "old")

	code, _, stderr := upgrader(t, cp, payload.NodeUpgrader, nil, "run", "--ignore-preflight-errors=SystemVerification")
	if code != 5 || !strings.Contains(stderr, "kube-controller-manager runs: nothing") || !strings.Contains(stderr, "--restore-etcd, which loses all that was written to the cluster since") {
		t.Fatalf("run: exit %d, want 5\n%s", code, stderr)
	}
	start := time.Now()
	if code, _, stderr = upgrader(t, cp, payload.NodeUpgrader, nil, "rollback", "--restore-etcd"); code != 0 {
		t.Fatalf("rollback: exit %d\n%s", code, stderr)
	}
	t.Logf("rollback:\n%s", stderr)
	record(t, figures.Info("control_plane_restored_seconds", time.Since(start).Seconds(), "s"))
	must(t, c.Wait(t.Context()))
	if diff := cmp.Diff(before, versions(t, cp, client)); diff != "" {
		t.Errorf("versions (-before +after):\n%s", diff)
	}
	if diff := cmp.Diff(files, nodeFiles(t, cp)); diff != "" {
		t.Errorf("files (-before +after):\n%s", diff)
	}
	if got := kept(t, client, "before"); got != "old" {
		t.Errorf("what was written before the upgrade is %q", got)
	}
	allRunning(t, client)
	counter(t, cp)
}
