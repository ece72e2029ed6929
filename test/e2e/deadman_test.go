//go:build e2e

package e2e

import (
	"context"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/node-upgrader/node-upgrader/test/figures"
	"github.com/node-upgrader/node-upgrader/test/host"
	"github.com/node-upgrader/node-upgrader/test/payload"
)

// deadManAfter is much less than the step's own patience with the program.
const deadManAfter = 30 * time.Second

// killForGood kills the unit's process until systemd starts it no more.
const killForGood = `
while :; do
  case "$(systemctl show -p ActiveState --value upgrader.service)" in failed|inactive) exit ;; esac
  systemctl kill --signal=KILL upgrader.service || true
  sleep 0.1
done`

// deadMan: the upgrader is killed for good right after it has started a
// containerd that hangs, and nobody is left but the switch.
func (f fault) deadMan(t *testing.T, good payload.Payload, cp host.Machine, client kubernetes.Interface) {
	bundle := f.bundle(t, good, cp)
	before := viewOf(t, cp, client)
	var started time.Time
	dead := make(chan error, 1)
	args := append([]string{"run", "-o", "json", "--run-id=dead", "--dead-man-after=" + deadManAfter.String(), "--bundle=" + bundle}, f.args...)
	code, out, stderr := upgrader(t, cp, payload.NodeUpgrader, func(e event) {
		if e.Step == f.step && e.Msg == "starting" && started.IsZero() {
			started = time.Now()
			go func() {
				_, err := cp.Exec(t.Context(), host.Command("sh", "-c", killForGood))
				dead <- err
			}()
		}
	}, args...)
	if started.IsZero() {
		t.Fatalf("exit %d before the new containerd was started\n%s%s", code, out, stderr)
	}
	must(t, <-dead)
	t.Logf("killed for good after %.1f s: exit %d\n%s%s", time.Since(started).Seconds(), code, out, stderr)
	if running := sh(t, cp, "sh", "-c", `sha256sum < /proc/$(systemctl show -p MainPID --value containerd)/exe`); !strings.Contains(sh(t, cp, "sha256sum", bundle+"/containerd/containerd"), strings.Fields(running)[0]) {
		t.Errorf("the containerd that hangs does not run")
	}
	must(t, wait.PollUntilContextTimeout(t.Context(), time.Second, 4*time.Minute, true, func(ctx context.Context) (bool, error) {
		res, err := cp.Exec(ctx, host.Command("systemctl", "list-units", "--no-legend", "--state=active,activating,deactivating", "upgrader*"))
		return strings.TrimSpace(res.Stdout) == "", err
	}))
	back := ready(t, client, cp.Name())
	put(t, figures.Info("rollback_seconds_dead_man", back.Sub(started.Add(deadManAfter)).Seconds(), "s"))
	before.compare(t, viewOf(t, cp, client))
	status := sh(t, cp, payload.NodeUpgrader, "status")
	t.Logf("%s\n%s", status, sh(t, cp, "sh", "-c", "tail -n 20 /var/lib/upgrader/runs/dead/log.jsonl"))
	if !strings.Contains(status, "dead-man") {
		t.Errorf("the status does not tell that the dead-man's switch was at work")
	}
}
