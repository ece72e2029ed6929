//go:build e2e

package e2e

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/node-upgrader/node-upgrader/test/figures"
	"github.com/node-upgrader/node-upgrader/test/host"
	"github.com/node-upgrader/node-upgrader/test/payload"
)

func asExit(err error, target **host.ExitError) bool { return errors.As(err, target) }

// By hand on a single control plane: everything at its target, the workload's
// data there, no container of it restarted until the drain; and the same
// upgrade again does nothing.
func TestByHand(t *testing.T) {
	t.Parallel()
	p := load(t)
	c, client := up(t, 0)
	cp := c.ControlPlane
	must(t, p.CopyTo(cp))
	must(t, p.ImportImages(t.Context(), cp))
	before := containers(t, client, cp.Name())
	count := counter(t, cp)

	code, plan, stderr := upgrader(t, cp, payload.NodeUpgrader, nil, "plan")
	if code != 0 || !strings.Contains(plan, "kubeadm upgrade apply") {
		t.Fatalf("plan: exit %d\n%s%s", code, plan, stderr)
	}
	t.Logf("plan:\n%s", plan)
	if diff := cmp.Diff(before, containers(t, client, cp.Name())); diff != "" {
		t.Errorf("the plan changed something:\n%s", diff)
	}

	start := time.Now()
	var steps []string
	code, out, stderr := upgrader(t, cp, payload.NodeUpgrader, func(e event) {
		if e.Event == "end" {
			steps = append(steps, e.Step)
		}
		if e.Event == "start" && e.Step == "drain" {
			workloadUntouched(t, before, containers(t, client, cp.Name()))
		}
		if e.Event == "start" && e.Step == "cni-plugins" {
			if gone := missing(before, containers(t, client, cp.Name())); len(gone) > 0 {
				t.Errorf("containers that did not survive containerd's upgrade: %v", gone)
			}
		}
	}, "run", "-o", "json", "--ignore-preflight-errors=SystemVerification")
	if code != 0 {
		t.Fatalf("run: exit %d\n%s", code, stderr)
	}
	t.Logf("run:\n%s", stderr)
	record(t, figures.Info("by_hand_seconds", time.Since(start).Seconds(), "s"))
	want := []string{"copy", "copy", "containerd", "cni-plugins", "kubeadm", "drain", "kubelet", "uncordon"}
	if diff := cmp.Diff(want, steps); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
	must(t, c.Wait(t.Context()))
	atTarget(t, cp, client, p.Target.Set, true)
	allRunning(t, client)
	if now := counter(t, cp); now <= count {
		t.Errorf("the workload counted %d before and %d after", count, now)
	}
	_ = out
	closed(t, cp, payload.NodeUpgrader, "user root", p.Digest)
	again(t, c.ControlPlane, payload.NodeUpgrader)
	t.Logf("status:\n%s", sh(t, cp, payload.NodeUpgrader, "status"))
}

// workloadUntouched compares the workload's containers alone: the control
// plane's are made again by kubeadm, and kube-proxy's by its DaemonSet.
func workloadUntouched(t *testing.T, before, after map[container]int32) {
	t.Helper()
	found := false
	for c, restarts := range before {
		if !strings.HasPrefix(c.Pod, "default/workload") {
			continue
		}
		found = true
		if now, there := after[c]; !there || now != restarts {
			t.Errorf("%s %s did not survive until the drain (restarts %d, then %d)", c.Pod, c.Name, restarts, now)
		}
	}
	if !found {
		t.Error("no workload to look at")
	}
}

// again runs the finished upgrade once more: it changes nothing, restarts
// nothing, drains nothing and is quick.
func again(t *testing.T, m host.Machine, program string) {
	t.Helper()
	facts := []string{"sh", "-c", `systemctl show -p MainPID -p ExecMainStartTimestamp containerd kubelet; ctr -n k8s.io tasks ls | sort; stat -c '%n %Y %Z %i' /usr/bin/kube* /usr/local/bin/* /usr/local/sbin/* /opt/cni/bin/* /etc/kubernetes/manifests/* /var/lib/kubelet/config.yaml`}
	before := sh(t, m, facts...)
	start := time.Now()
	code, out, stderr := upgrader(t, m, program, nil, "run", "-o", "json", "--ignore-preflight-errors=SystemVerification")
	took := time.Since(start)
	if code != 0 || !strings.Contains(stderr, "nothing to do") {
		t.Errorf("the same upgrade again: exit %d\n%s%s", code, out, stderr)
	}
	if diff := cmp.Diff(before, sh(t, m, facts...)); diff != "" {
		t.Errorf("the same upgrade again changed something:\n%s", diff)
	}
	record(t, figures.AtMost("rerun_seconds", took.Seconds(), "s", 2))
}
