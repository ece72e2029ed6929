//go:build e2e

package e2e

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/node-upgrader/node-upgrader/test/figures"
	"github.com/node-upgrader/node-upgrader/test/host"
	"github.com/node-upgrader/node-upgrader/test/payload"
)

// lose takes three sandboxes' processes out of the devices cgroup that their
// shims look at, as systemd does with its own driver on cgroup v1: at its next
// start containerd would take them for leaked shims and throw the pods away.
const lose = `
sandboxes=$(ctr -n k8s.io containers ls -q 'labels."io.cri-containerd.kind"==sandbox')
ctr -n k8s.io tasks ls | awk '$3 == "RUNNING" { print $1, $2 }' > /run/tasks
left=3
while read id pid; do
  case "$sandboxes" in *$id*) ;; *) continue ;; esac
  path=$(sed -n 's/^[0-9]*:devices://p' /proc/$pid/cgroup)
  echo $pid > /sys/fs/cgroup/devices$(dirname $path)/cgroup.procs
  echo $id
  left=$((left - 1))
  [ $left -gt 0 ] || break
done < /run/tasks`

// Sandboxes that containerd would throw away at its start are found before, and
// every one of them goes on.
func TestSandboxesWithoutProcesses(t *testing.T) {
	t.Parallel()
	v2, err := host.UnifiedCgroups()
	must(t, err)
	if v2 {
		t.Skip("cgroup v2 has one hierarchy: a process cannot be lost from a part of it")
	}
	p := load(t)
	c, client := up(t, 0)
	cp := c.ControlPlane
	must(t, p.CopyTo(cp))
	must(t, p.ImportImages(t.Context(), cp))
	lost := strings.Fields(sh(t, cp, "sh", "-ec", lose))
	if len(lost) != 3 {
		t.Fatalf("took the processes out of %v, want 3 sandboxes", lost)
	}
	tasks := []string{"sh", "-c", "ctr -n k8s.io tasks ls | sort"}
	before, pods := sh(t, cp, tasks...), containers(t, client, cp.Name())

	code, plan, stderr := upgrader(t, cp, payload.NodeUpgrader, nil, "plan")
	if code != 0 || strings.Count(plan, "~ move") < len(lost) {
		t.Errorf("plan: exit %d, want %d processes to be moved back\n%s%s", code, len(lost), plan, stderr)
	}
	for _, step := range []string{"copy", "containerd"} {
		code, out, stderr := upgrader(t, cp, payload.NodeUpgrader, nil, step)
		if code != 0 {
			t.Fatalf("%s: exit %d\n%s%s", step, code, out, stderr)
		}
		t.Logf("%s", stderr)
	}
	if version := sh(t, cp, "sh", "-c", "ctr version | sed -n '/Server/,$p'"); !strings.Contains(version, p.Target.Set.Containerd) {
		t.Errorf("containerd: %s", version)
	}
	if diff := cmp.Diff(before, sh(t, cp, tasks...)); diff != "" {
		t.Errorf("tasks:\n%s", diff)
	}
	if log := sh(t, cp, "sh", "-c", "journalctl -u containerd | grep -c 'cleaning leaked' || true"); strings.TrimSpace(log) != "0" {
		t.Errorf("containerd cleaned %s shims", log)
	}
	must(t, c.Wait(t.Context()))
	if diff := cmp.Diff(pods, containers(t, client, cp.Name())); diff != "" {
		t.Errorf("containers:\n%s", diff)
	}
	record(t, figures.AtMost("sandboxes_lost", float64(len(missing(pods, containers(t, client, cp.Name())))), "sandboxes", 0))
}
