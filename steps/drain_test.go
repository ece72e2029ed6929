package steps

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
)

func apiError(code int32) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{Code: code, Message: http.StatusText(int(code))}}
}

func TestDrain(t *testing.T) {
	daemonSet := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "owner"}}
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "nodes"}, "n1", errors.New("changed"))
	for _, tc := range []struct {
		name     string
		node     func(*corev1.Node)
		objects  []kruntime.Object
		set      func(*cluster)
		left     string // pods
		cordoned string
		exit     int
		text     []string // in the error
		hint     string
	}{
		{name: "an empty node", cordoned: "run-1"},
		{name: "what has to go goes", objects: []kruntime.Object{
			daemonSet, aPod("web"), aPod("agent", ownedBy("DaemonSet")), aPod("etcd", mirrored),
			aPod("upgrade", ownedBy(""), labelled(OwnLabel, "run-1")),
			aPod("elsewhere", func(p *corev1.Pod) { p.Spec.NodeName = "n2" }),
		}, left: "agent elsewhere etcd upgrade", cordoned: "run-1"},
		{
			name: "--pod-selector", objects: []kruntime.Object{aPod("web"), aPod("db", labelled("app", "db")), aPod("upgrade", labelled(OwnLabel, ""))},
			set: func(c *cluster) { c.env.Options.Drain.PodSelector = "app!=db" }, left: "db upgrade", cordoned: "run-1",
		},
		{name: "somebody else's cordon stays theirs", node: cordonedNode(""), objects: []kruntime.Object{aPod("web")}, cordoned: "foreign"},
		{name: "so does one on a node with our annotation", node: foreignCordon, objects: []kruntime.Object{aPod("web")}, cordoned: "foreign"},
		{name: "an older run's cordon is taken over", node: cordonedNode("run-0"), objects: []kruntime.Object{aPod("web")}, cordoned: "run-1"},
		{name: "a conflict", set: func(c *cluster) { c.fail("patch", "nodes", conflict, conflict) }, cordoned: "run-1"},
		{name: "the API server is away", objects: []kruntime.Object{aPod("web")}, set: func(c *cluster) {
			c.fail("get", "nodes", io.EOF, apiError(503), nil, io.EOF)
			c.fail("list", "pods", io.EOF, nil, apiError(500))
			c.fail("patch", "nodes", apiError(502))
		}, cordoned: "run-1"},
		{name: "an eviction meets a 500 and a closed connection", objects: []kruntime.Object{aPod("web"), aPod("web-2")}, set: func(c *cluster) {
			answers := []error{apiError(500), io.EOF, apiError(429)}
			c.evict = func(_ string, dryRun bool) (bool, error) {
				if dryRun || len(answers) == 0 {
					return false, nil
				}
				err := answers[0]
				answers = answers[1:]
				return true, err
			}
		}, cordoned: "run-1"},
		{name: "the budget lets one go after the other", objects: []kruntime.Object{
			aPod("web-1"), aPod("web-2"), aBudget("web", 1, 2, 1),
		}, set: func(c *cluster) {
			c.slept = func() { setBudget(c, "web", 1) } // a replacement got ready
		}, cordoned: "run-1"},
		{
			name: "the budget does not", objects: []kruntime.Object{aPod("web-1"), aBudget("web", 0, 1, 1)},
			left: "web-1", exit: ExitBlocked, text: []string{"no end after 200ms", "pod default/web-1: budget default/web allows 0 disruptions (1 healthy, 1 wanted)"},
			hint: "kubectl --namespace default describe poddisruptionbudget web",
		},
		{name: "the budget does not, after another pod went", objects: []kruntime.Object{
			aPod("db", labelled("app", "db")), aPod("web-1"), aBudget("web", 0, 1, 1),
		}, left: "web-1", exit: ExitFailed, text: []string{"budget default/web", "1 pods were evicted"}, hint: "describe poddisruptionbudget web"},
		{
			name: "blocked on somebody else's cordon", node: cordonedNode(""), objects: []kruntime.Object{aPod("web-1"), aBudget("web", 0, 1, 1)},
			left: "web-1", cordoned: "foreign", exit: ExitBlocked, text: []string{"budget default/web"},
		},
		{
			name: "a pod that does not end", objects: []kruntime.Object{aPod("web", func(p *corev1.Pod) { p.Finalizers = []string{"example.com/wait"} })},
			set: func(c *cluster) { c.stuck["web"] = true }, left: "web", exit: ExitFailed,
			text: []string{"pod default/web is terminating, its grace period ends at 2030-01-01T00:00:0", "finalizers example.com/wait"},
		},
		{name: "a bare pod", objects: []kruntime.Object{aPod("bare", ownedBy(""))}, left: "bare", exit: ExitBlocked, text: []string{"default/bare"}, hint: "--force"},
		{
			name: "a bare pod by force", objects: []kruntime.Object{aPod("bare", ownedBy(""))},
			set: func(c *cluster) { c.env.Options.Drain.Force = true }, cordoned: "run-1",
		},
		{
			name: "an emptyDir", objects: []kruntime.Object{aPod("web", withEmptyDir)}, set: func(c *cluster) { c.env.Options.Drain.DeleteEmptyDirData = false },
			left: "web", exit: ExitBlocked, text: []string{"local storage"}, hint: "--delete-emptydir-data",
		},
		{
			name: "a DaemonSet without its flag", objects: []kruntime.Object{daemonSet, aPod("agent", ownedBy("DaemonSet"))},
			set: func(c *cluster) { c.env.Options.Drain.IgnoreDaemonSets = false }, left: "agent", exit: ExitBlocked, hint: "--ignore-daemonsets",
		},
		{
			name: "the DaemonSet cannot be asked for at once", objects: []kruntime.Object{daemonSet, aPod("agent", ownedBy("DaemonSet")), aPod("web")},
			set: func(c *cluster) { c.fail("get", "daemonsets", io.EOF, apiError(503)) }, left: "agent", cordoned: "run-1",
		},
		{name: "a pod that tolerates the cordon comes again", objects: []kruntime.Object{aPod("stubborn-1", tolerating)}, set: func(c *cluster) {
			c.slept = func() {
				if len(c.pods()) == 0 {
					_ = c.client.Tracker().Add(aPod("stubborn-2", tolerating))
				}
			}
		}, left: "stubborn-2", cordoned: "run-1"},
		{name: "evictions are forbidden", objects: []kruntime.Object{aPod("web")}, set: func(c *cluster) {
			c.evict = func(string, bool) (bool, error) {
				return true, apierrors.NewForbidden(schema.GroupResource{Resource: "pods/eviction"}, "web", errors.New("no"))
			}
		}, left: "web", exit: ExitFailed, text: []string{"evict default/web: ", "forbidden"}},
		{name: "the node is gone", set: func(c *cluster) { c.env.Node.Name = "n9" }, exit: ExitFailed, text: []string{`get node n9: nodes "n9" not found`}, hint: "kubectl get nodes"},
		{name: "no credentials", set: func(c *cluster) {
			c.env.Admin = func(context.Context) (kubernetes.Interface, error) { return nil, errors.New("none") }
		}, exit: ExitBlocked, hint: "--kubeconfig"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			node := aNode("n1")
			if tc.node != nil {
				tc.node(node)
			}
			c := newCluster(t, append(tc.objects, node)...)
			if tc.exit != ExitDone {
				c.env.Options.Drain.Timeout = 200 * time.Millisecond
			}
			if tc.set != nil {
				tc.set(c)
			}
			step := drainStep(c.env.Options.Drain.Timeout, disturber(restarting()))
			err := step.Run(t.Context(), c.env)
			if got := ExitCode(err); got != tc.exit {
				t.Fatalf("exit %d, want %d: %v", got, tc.exit, err)
			}
			for _, text := range tc.text {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("error %q lacks %q", err, text)
				}
			}
			if hints := strings.Join(Hints(err), "\n"); !strings.Contains(hints, tc.hint) {
				t.Errorf("hints %q lack %q", hints, tc.hint)
			}
			left := c.pods()
			slices.Sort(left)
			if diff := cmp.Diff(tc.left, strings.Join(left, " ")); diff != "" {
				t.Error("pods left", diff)
			}
			if got := c.cordoned(); got != tc.cordoned {
				t.Errorf("cordoned by %q, want %q", got, tc.cordoned)
			}
			if err != nil {
				return
			}
			if state, err := step.Check(t.Context(), c.env); err != nil || state.Phase != Done && tc.name != "a pod that tolerates the cordon comes again" {
				t.Errorf("after it, check says %+v, %v", state, err)
			}
		})
	}
}

func tolerating(p *corev1.Pod) {
	p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
}

func setBudget(c *cluster, name string, allowed int32) {
	ctx := context.Background()
	b, err := c.client.PolicyV1().PodDisruptionBudgets("default").Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		c.t.Error(err)
		return
	}
	b.Status.DisruptionsAllowed = allowed
	if _, err := c.client.PolicyV1().PodDisruptionBudgets("default").Update(ctx, b, metav1.UpdateOptions{}); err != nil {
		c.t.Error(err)
	}
}

func TestDrainIsToldToStop(t *testing.T) {
	c := newCluster(t, aNode("n1"), aPod("web"), aBudget("web", 0, 1, 1))
	ctx, stop := context.WithCancelCause(t.Context())
	c.slept = func() { stop(errors.New("SIGTERM")) }
	err := drainStep(time.Minute, disturber(restarting())).Run(ctx, c.env)
	if err == nil || !strings.Contains(err.Error(), "SIGTERM") || ExitCode(err) != ExitFailed {
		t.Errorf("got %v", err)
	}
	if got := c.cordoned(); got != "" {
		t.Errorf("still cordoned by %q", got)
	}
}

func TestDrainCheck(t *testing.T) {
	for _, tc := range []struct {
		name    string
		protect *State
		node    func(*corev1.Node)
		objects []kruntime.Object
		set     func(*cluster)
		want    Phase
		blocks  string
		changes string
	}{
		{name: "nothing is disturbed", protect: &State{Phase: Done}, objects: []kruntime.Object{aPod("web")}, want: Done},
		{name: "only kubectl is replaced", protect: &State{Phase: Needed, Changes: []Change{{"replace", "/usr/bin/kubectl"}}}, want: Done},
		{name: "it waits for its health only", protect: &State{Phase: Needed}, want: Done},
		{name: "it is blocked itself", protect: &State{Phase: Blocked, Changes: []Change{{"restart", kubeletUnit}}}, want: Needed, changes: "cordon n1"},
		{name: "it is blocked, and so is the drain", protect: &State{Phase: Blocked, Changes: []Change{{"restart", kubeletUnit}}}, want: Blocked, objects: []kruntime.Object{aPod("web"), aBudget("web", 0, 1, 1)}, blocks: "default/web", changes: "cordon n1, evict default/web"},
		{name: "done needs no credentials", protect: &State{Phase: Done}, want: Done, set: func(c *cluster) {
			c.env.Admin = func(context.Context) (kubernetes.Interface, error) { return nil, errors.New("none") }
		}},
		{name: "needed", protect: restarting(), objects: []kruntime.Object{aPod("web")}, want: Needed, changes: "cordon n1, evict default/web"},
		{name: "no credentials", protect: restarting(), want: Blocked, blocks: "no credentials", set: func(c *cluster) {
			c.env.Admin = func(context.Context) (kubernetes.Interface, error) { return nil, errors.New("none") }
		}},
		{name: "credentials in another container", protect: restarting(), want: Needed, changes: "cordon n1", set: func(c *cluster) {
			c.env.Admin = func(context.Context) (kubernetes.Interface, error) { return nil, ErrAdminElsewhere }
		}},
		{name: "empty, but cordoned by nobody we remember", protect: restarting(), node: cordonedNode("run-1"), want: Needed},
		{
			name: "blocked", protect: restarting(), want: Blocked, objects: []kruntime.Object{aPod("web"), aBudget("web", 0, 1, 1)},
			blocks: "budget default/web", changes: "cordon n1, evict default/web",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			node := aNode("n1")
			if tc.node != nil {
				tc.node(node)
			}
			c := newCluster(t, append(tc.objects, node)...)
			if tc.set != nil {
				tc.set(c)
			}
			state, err := drainStep(time.Minute, disturber(tc.protect)).Check(t.Context(), c.env)
			if err != nil || state.Phase != tc.want {
				t.Fatalf("%+v, %v", state, err)
			}
			var changes, blocks []string
			for _, ch := range state.Changes {
				changes = append(changes, ch.Verb+" "+ch.Object)
			}
			for _, b := range state.Blocks {
				blocks = append(blocks, b.Reason)
			}
			if got := strings.Join(changes, ", "); got != tc.changes {
				t.Errorf("changes %q, want %q", got, tc.changes)
			}
			if got := strings.Join(blocks, ", "); !strings.Contains(got, tc.blocks) || tc.blocks == "" && got != "" {
				t.Errorf("blocks %q, want %q", got, tc.blocks)
			}
			if tc.node == nil && c.cordoned() != "" {
				t.Error("the check has cordoned the node")
			}
		})
	}
}

func TestDrainAsksBeforeItEvicts(t *testing.T) {
	c := newCluster(t, aNode("n1"), aPod("web"))
	unknown := Step{Name: "kubelet", Check: func(context.Context, Env) (State, error) { return State{}, io.EOF }}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := drainStep(time.Minute, unknown).Run(ctx, c.env); err == nil || !strings.Contains(err.Error(), "does kubelet need it") {
		t.Errorf("got %v", err)
	}
	if err := drainStep(time.Minute, disturber(&State{Phase: Done})).Run(t.Context(), c.env); err != nil {
		t.Error(err)
	}
	if got := strings.Join(c.pods(), " "); got != "web" || c.cordoned() != "" {
		t.Errorf("pods %q, cordoned by %q", got, c.cordoned())
	}
}
