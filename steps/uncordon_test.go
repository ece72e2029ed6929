package steps

import (
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func gpus(n int64) func(*corev1.Node) {
	return func(node *corev1.Node) {
		node.Status.Allocatable = corev1.ResourceList{
			"example.com/gpu": *resource.NewQuantity(n, resource.DecimalSI), "cpu": resource.MustParse("2"),
			"hugepages-2Mi": resource.MustParse("0"), "attachable-volumes-csi-x.kubernetes.io/y": resource.MustParse("1"),
		}
	}
}

func notReady(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionFalse }

func TestUncordon(t *testing.T) {
	changed := func(c *cluster, edit func(*corev1.Node)) {
		n := c.node().DeepCopy()
		edit(n)
		c.touch(n)
	}
	for _, tc := range []struct {
		name     string
		node     []func(*corev1.Node)
		before   drained
		set      func(*cluster)
		check    Phase // before Run
		cordoned string
		waited   time.Duration // at least
		text     string
	}{
		{name: "ours", node: []func(*corev1.Node){cordonedNode("run-1")}, check: Needed},
		{name: "of an older run of ours", node: []func(*corev1.Node){cordonedNode("run-0")}, check: Needed},
		{name: "somebody else's", node: []func(*corev1.Node){cordonedNode("")}, before: drained{Foreign: true}, check: Done, cordoned: "foreign"},
		{name: "somebody else's, and our annotation is left", node: []func(*corev1.Node){foreignCordon}, check: Needed, cordoned: "foreign"},
		{name: "nobody knows whose", node: []func(*corev1.Node){cordonedNode("run-1"), func(n *corev1.Node) { n.ManagedFields = nil }}, check: Needed, cordoned: "foreign"},
		{name: "not cordoned", check: Done},
		{name: "uncordoned by somebody else", node: []func(*corev1.Node){cordonedNode("run-1"), func(n *corev1.Node) { n.Spec.Unschedulable = false }}, check: Needed},
		{name: "a conflict, and the API server away", node: []func(*corev1.Node){cordonedNode("run-1")}, check: Needed, set: func(c *cluster) {
			c.fail("patch", "nodes", apierrors.NewConflict(schema.GroupResource{Resource: "nodes"}, "n1", errors.New("changed")), apiError(503))
			c.fail("get", "nodes", io.EOF, nil, io.EOF)
		}},
		{name: "not ready yet", node: []func(*corev1.Node){cordonedNode("run-1"), notReady}, check: Needed, waited: time.Second, set: func(c *cluster) {
			c.slept = func() { changed(c, func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionTrue }) }
		}},
		{name: "never ready", node: []func(*corev1.Node){cordonedNode("run-1"), notReady}, check: Needed, cordoned: "run-1", text: "wait until node n1 may take pods again"},
		{
			name: "the device plugin comes back", node: []func(*corev1.Node){cordonedNode("run-1"), gpus(0)}, check: Needed, waited: time.Second,
			before: drained{Extended: map[string]int64{"example.com/gpu": 2}}, set: func(c *cluster) {
				c.slept = func() { changed(c, gpus(2)) }
			},
		},
		{
			name: "the device plugin stays away", node: []func(*corev1.Node){cordonedNode("run-1")}, check: Needed, waited: devicesWait,
			before: drained{Extended: map[string]int64{"example.com/gpu": 2}},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			node := aNode("n1", tc.node...)
			c := newCluster(t, node)
			if err := c.env.Record.Save(t.Context(), drainRecord, tc.before); err != nil {
				t.Fatal(err)
			}
			if tc.set != nil {
				tc.set(c)
			}
			step := uncordonStep(disturber(&State{Phase: Done}))
			state, err := step.Check(t.Context(), c.env)
			if err != nil || state.Phase != tc.check {
				t.Fatalf("check says %+v, %v", state, err)
			}
			start := c.env.Clock.Now()
			limit := time.Minute
			if tc.text != "" { // it is to run out
				limit = 100 * time.Millisecond
			}
			ctx, cancel := contextWithTimeout(t, limit)
			defer cancel()
			err = step.Run(ctx, c.env)
			if tc.text == "" && err != nil || tc.text != "" && (err == nil || !strings.Contains(err.Error(), tc.text)) {
				t.Fatalf("got %v, want %q", err, tc.text)
			}
			if got := c.cordoned(); got != tc.cordoned {
				t.Errorf("cordoned by %q, want %q", got, tc.cordoned)
			}
			if got := c.env.Clock.Now().Sub(start); got < tc.waited {
				t.Errorf("waited for %s only", got)
			}
			if state, checkErr := step.Check(t.Context(), c.env); err == nil && (checkErr != nil || state.Phase != Done) {
				t.Errorf("after it, check says %+v, %v", state, checkErr)
			}
		})
	}
}

// A plan shows the uncordon that will be needed; the same step run by hand on a
// node that stays behind ends.
func TestUncordonAroundADrain(t *testing.T) {
	c := newCluster(t, aNode("n1", gpus(2)), aPod("web"))
	protect := disturber(restarting())
	drain, uncordon := drainStep(time.Minute, protect), uncordonStep(protect)
	phase := func() Phase {
		t.Helper()
		state, err := uncordon.Check(t.Context(), c.env)
		if err != nil {
			t.Fatal(err)
		}
		return state.Phase
	}
	if got := phase(); got != Needed {
		t.Errorf("before the drain: %s", got)
	}
	if err := drain.Run(t.Context(), c.env); err != nil {
		t.Fatal(err)
	}
	if got := phase(); got != Needed {
		t.Errorf("after the drain: %s", got)
	}
	var record drained
	if _, err := c.env.Record.Load(drainRecord, &record); err != nil || record.Extended["example.com/gpu"] != 2 || len(record.Extended) != 1 {
		t.Errorf("record %+v, %v", record, err)
	}
	if err := uncordon.Run(t.Context(), c.env); err != nil {
		t.Fatal(err)
	}
	if got := phase(); got != Done || c.cordoned() != "" {
		t.Errorf("given back by hand: %s, cordoned by %q", got, c.cordoned())
	}
	if err := drain.Run(t.Context(), c.env); err != nil {
		t.Fatal(err)
	}
	if got := phase(); got != Needed || c.cordoned() != "run-1" {
		t.Errorf("drained again: %s, cordoned by %q", got, c.cordoned())
	}
}
