//go:build e2e && e2e_crash

package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/node-upgrader/node-upgrader/test/figures"
)

// everyStep is how many accidents there are: one for each step.
const everyStep = 7

// Upgrades that are struck by a crash of the whole host in each of their seven
// steps.
func TestHostCrashes(t *testing.T) {
	const upgrades = 3
	r := random(t)
	var all strikes
	for i := range upgrades {
		list := accidents(r, everyStep)
		t.Run(fmt.Sprintf("upgrade_%d", i+1), func(t *testing.T) {
			struck := upgradeThrough(t, list)
			all.crashes += struck.crashes
			all.recovered += struck.recovered
		})
	}
	if all.crashes < 20 {
		t.Errorf("%d crashes, want at least 20", all.crashes)
	}
	must(t, figures.Put("e2e-crash", all.rows()...))
}

// An upgrade by pod, whose pod and unit are killed in each of its steps; half of
// the time the pod is deleted as well, and made anew.
func TestPodStruck(t *testing.T) {
	r := random(t)
	p := load(t)
	c, client := up(t, 0)
	s := &struckNode{t: t, c: c, client: client, m: c.ControlPlane}
	must(t, p.ImportImages(t.Context(), s.m))
	must(t, p.ImportSelf(t.Context(), s.m))
	s.before()
	apply(t, c, p, "rbac")
	applyPod(t, c, p, s.m.Name(), crashRun)
	name := "upgrader-" + s.m.Name()
	list := accidents(r, 0)
	for _, a := range list {
		s.await(a, nil)
		s.killAll()
		deleted := r.IntN(2) == 0
		t.Logf("%s, pod deleted: %t", a, deleted)
		if !deleted {
			continue
		}
		must(t, wait.PollUntilContextTimeout(t.Context(), time.Second, 5*time.Minute, true, func(ctx context.Context) (bool, error) {
			err := client.CoreV1().Pods(namespace).Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
			return apierrors.IsNotFound(err), nil
		}))
		applyPod(t, c, p, s.m.Name(), crashRun)
	}
	show(t, client, await(t, client, name, 15*time.Minute, succeeded))
	must(t, c.Wait(t.Context()))
	atTarget(t, s.m, client, p.Target.Set, true)
	s.check()
	allRunning(t, client)
	unschedulable(t, client, s.m)
	must(t, figures.Put("e2e-crash", figures.Info("pod_strikes_recovered", float64(len(list)), "strikes")))
}
