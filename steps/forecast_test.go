package steps

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/node-upgrader/node-upgrader/image"
)

func TestForecast(t *testing.T) {
	always := func(b *policyv1.PodDisruptionBudget) {
		p := policyv1.AlwaysAllow
		b.Spec.UnhealthyPodEvictionPolicy = &p
	}
	all := func(b *policyv1.PodDisruptionBudget) { b.Spec.Selector.MatchLabels = nil }
	none := func(b *policyv1.PodDisruptionBudget) { b.Spec.Selector = nil }
	pending := func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }
	for _, tc := range []struct {
		name    string
		objects []kruntime.Object
		set     func(*cluster)
		want    []string // one for each block, in order
	}{
		{name: "nothing"},
		{name: "no budget", objects: []kruntime.Object{aPod("web")}},
		{name: "enough", objects: []kruntime.Object{aPod("web-1"), aPod("web-2"), aBudget("web", 2, 4, 2)}},
		{name: "one at a time, elsewhere", objects: []kruntime.Object{aNode("n2"), aPod("web-1"), aPod("web-2"), aBudget("web", 1, 2, 1)}},
		{
			name: "one at a time, nowhere else", objects: []kruntime.Object{aPod("web-1"), aPod("web-2"), aBudget("web", 1, 2, 1)},
			want: []string{"budget default/web allows 1 disruptions (2 healthy, 1 wanted) and there is no other node for replacements of 2 pods: default/web-1, default/web-2"},
		},
		{
			name: "the only other node is cordoned", objects: []kruntime.Object{aNode("n2", cordonedNode("")), aPod("web-1"), aPod("web-2"), aBudget("web", 1, 2, 1)},
			want: []string{"no other node"},
		},
		{
			name: "none", objects: []kruntime.Object{aNode("n2"), aPod("web-1"), aPod("web-2"), aBudget("web", 0, 2, 2)},
			want: []string{"budget default/web allows 0 disruptions (2 healthy, 2 wanted): default/web-1, default/web-2"},
		},
		{name: "a budget for the whole namespace", objects: []kruntime.Object{aPod("db", labelled("app", "db")), aBudget("all", 0, 1, 1, all)}, want: []string{"default/all"}},
		{name: "a budget for nothing", objects: []kruntime.Object{aPod("web"), aBudget("none", 0, 0, 1, none)}},
		{name: "two budgets", objects: []kruntime.Object{aPod("web"), aBudget("a", 1, 1, 0), aBudget("b", 1, 1, 0)}, want: []string{"budgets default/a and b cover one pod"}},
		{name: "pending", objects: []kruntime.Object{aPod("web", pending), aBudget("web", 0, 0, 1)}},
		{name: "unready while the others are enough", objects: []kruntime.Object{aPod("web", unready), aBudget("web", 0, 2, 2)}},
		{name: "unready while the others are not", objects: []kruntime.Object{aPod("web", unready), aBudget("web", 0, 1, 2)}, want: []string{"budget default/web"}},
		{name: "unready, always allowed", objects: []kruntime.Object{aPod("web", unready), aBudget("web", 0, 1, 2, always)}},
		{
			name: "everything at once", objects: []kruntime.Object{
				aPod("bare", ownedBy("")), aPod("data", withEmptyDir), aPod("web"), aBudget("web", 0, 1, 1),
			}, set: func(c *cluster) { c.env.Options.Drain.DeleteEmptyDirData = false },
			want: []string{"no controller", "local storage", "budget default/web"},
		},
		{
			name: "deletion asks no budget", objects: []kruntime.Object{aPod("web"), aBudget("web", 0, 1, 1)},
			set: func(c *cluster) { c.env.Options.Drain.DisableEviction = true },
		},
		{name: "a webhook says no", objects: []kruntime.Object{aPod("web")}, set: func(c *cluster) {
			c.evict = func(string, bool) (bool, error) {
				return true, apierrors.NewForbidden(schema.GroupResource{}, "", errors.New(`admission webhook "guard.example.com" denied the request: not today`))
			}
		}, want: []string{"not today"}},
		{name: "a webhook knows no dry run", objects: []kruntime.Object{aPod("web")}, set: func(c *cluster) {
			c.evict = func(string, bool) (bool, error) {
				return true, apierrors.NewBadRequest(`admission webhook "guard.example.com" does not support dry run`)
			}
		}},
		{name: "no right to evict", objects: []kruntime.Object{aPod("a"), aPod("b")}, set: func(c *cluster) {
			c.evict = func(string, bool) (bool, error) {
				return true, apierrors.NewForbidden(schema.GroupResource{Resource: "pods/eviction"}, "a", errors.New("no"))
			}
		}, want: []string{"evictions are not allowed"}},
		{name: "an overload is waited for", objects: []kruntime.Object{aPod("web")}, set: func(c *cluster) {
			busy := 3
			c.evict = func(string, bool) (bool, error) {
				busy--
				return busy > 0, apiError(429)
			}
		}},
		{name: "a budget that only the server knows of", objects: []kruntime.Object{aPod("web")}, set: func(c *cluster) {
			b := aBudget("new", 0, 0, 1)
			c.evict = func(string, bool) (bool, error) {
				_ = c.client.Tracker().Add(b)
				return false, nil
			}
		}, want: []string{"The disruption budget new needs 1 healthy pods and has 0 currently"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newCluster(t, append(tc.objects, aNode("n1"))...)
			if tc.set != nil {
				tc.set(c)
			}
			list, err := listPods(t.Context(), c.env, c.client, nil)
			if err != nil {
				t.Fatal(err)
			}
			blocks, err := forecastDrain(t.Context(), c.env, c.client, list)
			if err != nil {
				t.Fatal(err)
			}
			if len(blocks) != len(tc.want) {
				t.Fatalf("blocks %+v, want %q", blocks, tc.want)
			}
			left := blocks
			for _, want := range tc.want {
				found := false
				for _, b := range left {
					found = found || strings.Contains(b.Reason, want) && b.Hint != ""
				}
				if !found {
					t.Errorf("no block with %q and a hint in %+v", want, blocks)
				}
			}
			if c.cordoned() != "" {
				t.Error("the forecast has changed the node")
			}
		})
	}
}

// The forecast of a plan is that of its drain, and nothing else is asked.
func TestForecastAlone(t *testing.T) {
	for _, tc := range []struct {
		name    string
		protect *State
		allowed int32
		want    Phase
		blocks  string
	}{
		{"nothing to drain", &State{Phase: Done}, 0, Done, ""},
		{"free to go", restarting(), 1, Needed, ""},
		{"forbidden", restarting(), 0, Blocked, "drain: budget default/web"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newCluster(t, aNode("n1"), aPod("web"), aBudget("web", tc.allowed, 1, 1))
			c.env.Bundle = &image.Bundle{}
			other := Step{Name: "copy", Check: func(context.Context, Env) (State, error) {
				t.Error("the copy was looked at")
				return State{}, nil
			}}
			report, err := Runner{Env: c.env, Plan: []Step{other, drainStep(time.Minute, disturber(tc.protect))}}.Forecast(t.Context())
			if err != nil || len(report.Steps) != 1 || report.Steps[0].Phase != tc.want {
				t.Fatalf("%+v, %v", report, err)
			}
			if blocks := report.Blocked(); len(blocks) > 0 != (tc.blocks != "") || len(blocks) > 0 && !strings.Contains(blocks[0].Reason, tc.blocks) {
				t.Errorf("blocks %+v, want %q", blocks, tc.blocks)
			}
			if c.cordoned() != "" || len(c.pods()) != 1 {
				t.Error("the forecast has changed the node")
			}
		})
	}
	c := newCluster(t, aNode("n1"))
	c.env.Bundle = &image.Bundle{}
	unknown := Step{Name: "kubelet", Check: func(context.Context, Env) (State, error) { return State{}, io.EOF }}
	if _, err := (Runner{Env: c.env, Plan: []Step{drainStep(time.Minute, unknown)}}).Forecast(t.Context()); ExitCode(err) != ExitFailed {
		t.Errorf("a state that cannot be told: %v", err)
	}
}
