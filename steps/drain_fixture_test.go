package steps

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

// cluster is an API server with the node n1. It checks resource versions and
// budgets, and evicts.
type cluster struct {
	t      *testing.T
	client *fake.Clientset
	env    Env
	// evict, when set, is asked first; handled means that err is the answer.
	evict func(pod string, dryRun bool) (handled bool, err error)
	// slept is called in each pause.
	slept func()
	// stuck pods go on terminating.
	stuck map[string]bool
}

var (
	podsGVR  = schema.GroupVersionResource{Version: "v1", Resource: "pods"}  //nolint:gochecknoglobals // a name
	nodesGVR = schema.GroupVersionResource{Version: "v1", Resource: "nodes"} //nolint:gochecknoglobals // a name
)

func newCluster(t *testing.T, objects ...kruntime.Object) *cluster {
	t.Helper()
	c := &cluster{t: t, client: fake.NewClientset(objects...), stuck: map[string]bool{}}
	c.client.PrependReactor("list", "pods", c.listPods)
	c.client.PrependReactor("patch", "nodes", c.patchNode)
	c.client.PrependReactor("create", "pods", c.evictPod)
	fs := hostexec.NewFS(t.TempDir())
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	admin := func(context.Context) (kubernetes.Interface, error) { return c.client, nil }
	c.env = Env{
		Host: hostexec.Host{FS: fs}, Record: NewRecord(fs, "run-1"), Node: Node{Name: "n1", Role: Worker},
		Kube: admin, Admin: admin, Log: slog.New(slog.DiscardHandler),
		Options: Options{RunID: "run-1", Drain: DefaultDrain()},
		Clock: Clock{
			Now: func() time.Time { return now },
			Sleep: func(ctx context.Context, d time.Duration) error {
				now = now.Add(d)
				time.Sleep(100 * time.Microsecond)
				if c.slept != nil {
					c.slept()
				}
				return context.Cause(ctx)
			},
		},
	}
	return c
}

func (c *cluster) node() *corev1.Node {
	c.t.Helper()
	obj, err := c.client.Tracker().Get(nodesGVR, "", "n1")
	if err != nil {
		c.t.Fatal(err)
	}
	return obj.(*corev1.Node)
}

// cordoned is who has cordoned the node: "", "foreign" or the run's id.
func (c *cluster) cordoned() string {
	n := c.node()
	by, annotated := n.Annotations[cordonedBy]
	switch {
	case annotated && (!n.Spec.Unschedulable || !ours(n)):
		return "annotation left"
	case annotated:
		return by
	case n.Spec.Unschedulable:
		return "foreign"
	}
	return ""
}

func (c *cluster) pods() []string {
	c.t.Helper()
	list, err := c.client.CoreV1().Pods("").List(c.t.Context(), metav1.ListOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	var names []string
	for _, p := range list.Items {
		names = append(names, p.Name)
	}
	return names
}

// listPods honours field selectors, which client-go's fake does not.
func (c *cluster) listPods(a ktesting.Action) (bool, kruntime.Object, error) {
	r := a.(ktesting.ListAction).GetListRestrictions()
	obj, err := c.client.Tracker().List(podsGVR, schema.GroupVersionKind{Version: "v1", Kind: "Pod"}, a.GetNamespace())
	if err != nil {
		return true, nil, err
	}
	out := &corev1.PodList{}
	for _, p := range obj.(*corev1.PodList).Items {
		if r.Labels.Matches(labels.Set(p.Labels)) && r.Fields.Matches(fields.Set{"spec.nodeName": p.Spec.NodeName}) {
			out.Items = append(out.Items, p)
		}
	}
	return true, out, nil
}

func (c *cluster) patchNode(a ktesting.Action) (bool, kruntime.Object, error) {
	pa := a.(ktesting.PatchAction)
	var patch struct {
		Metadata struct {
			ResourceVersion string             `json:"resourceVersion"`
			Annotations     map[string]*string `json:"annotations"`
		} `json:"metadata"`
		Spec *struct {
			Unschedulable *bool `json:"unschedulable"`
		} `json:"spec"`
	}
	dec := json.NewDecoder(bytes.NewReader(pa.GetPatch()))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&patch); err != nil || pa.GetPatchType() != types.MergePatchType {
		c.t.Errorf("unexpected patch %s: %v", pa.GetPatch(), err)
	}
	n := c.node().DeepCopy()
	if patch.Metadata.ResourceVersion != n.ResourceVersion {
		return true, nil, apierrors.NewConflict(schema.GroupResource{Resource: "nodes"}, "n1", errors.New("changed"))
	}
	for k, v := range patch.Metadata.Annotations {
		if v == nil {
			delete(n.Annotations, k)
			continue
		}
		metav1.SetMetaDataAnnotation(&n.ObjectMeta, k, *v)
	}
	if patch.Spec != nil {
		n.Spec.Unschedulable = patch.Spec.Unschedulable != nil && *patch.Spec.Unschedulable
	}
	c.touch(n, metav1.UpdateOptions{FieldManager: pa.(interface{ GetPatchOptions() metav1.PatchOptions }).GetPatchOptions().FieldManager})
	return true, c.node(), nil
}

// touch stores the node as a new version, with its field managers.
func (c *cluster) touch(n *corev1.Node, o ...metav1.UpdateOptions) {
	c.t.Helper()
	version, _ := strconv.Atoi(n.ResourceVersion)
	n.ResourceVersion = strconv.Itoa(version + 1)
	if err := c.client.Tracker().Update(nodesGVR, n, "", o...); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) evictPod(a ktesting.Action) (bool, kruntime.Object, error) {
	if a.GetSubresource() != "eviction" {
		c.t.Errorf("unexpected creation of a pod")
	}
	e := a.(ktesting.CreateAction).GetObject().(*policyv1.Eviction)
	dryRun := len(e.DeleteOptions.DryRun) > 0
	if !dryRun && c.cordoned() == "" {
		c.t.Errorf("%s is evicted from a node that is not cordoned", e.Name)
	}
	if c.evict != nil {
		if handled, err := c.evict(e.Name, dryRun); handled {
			return true, nil, err
		}
	}
	obj, err := c.client.Tracker().Get(podsGVR, e.Namespace, e.Name)
	if err != nil {
		return true, nil, err
	}
	p := obj.(*corev1.Pod).DeepCopy()
	if err := c.charge(p, dryRun); err != nil || dryRun {
		return true, nil, err
	}
	if c.stuck[p.Name] {
		now := metav1.NewTime(c.env.Clock.Now())
		p.DeletionTimestamp = &now
		return true, nil, c.client.Tracker().Update(podsGVR, p, p.Namespace)
	}
	return true, nil, c.client.Tracker().Delete(podsGVR, p.Namespace, p.Name)
}

// charge takes an eviction off the budget that covers the pod.
func (c *cluster) charge(p *corev1.Pod, dryRun bool) error {
	// Of the tracker: the client must not be asked while it asks us.
	gvr := policyv1.SchemeGroupVersion.WithResource("poddisruptionbudgets")
	obj, err := c.client.Tracker().List(gvr, policyv1.SchemeGroupVersion.WithKind("PodDisruptionBudget"), p.Namespace)
	if err != nil {
		return err
	}
	for i := range obj.(*policyv1.PodDisruptionBudgetList).Items {
		b := budget{PodDisruptionBudget: &obj.(*policyv1.PodDisruptionBudgetList).Items[i]}
		if b.selector, err = metav1.LabelSelectorAsSelector(b.Spec.Selector); err != nil {
			return err
		}
		if !b.selector.Matches(labels.Set(p.Labels)) {
			continue
		}
		if uncounted(p) || b.exempts(p) {
			continue
		}
		if b.Status.DisruptionsAllowed == 0 {
			err := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 0)
			err.ErrStatus.Details.Causes = []metav1.StatusCause{{
				Type:    policyv1.DisruptionBudgetCause,
				Message: fmt.Sprintf("The disruption budget %s needs %d healthy pods and has %d currently", b.Name, b.Status.DesiredHealthy, b.Status.CurrentHealthy),
			}}
			return err
		}
		if !dryRun {
			b.Status.DisruptionsAllowed--
			b.Status.CurrentHealthy--
			if err := c.client.Tracker().Update(gvr, b.PodDisruptionBudget, b.Namespace); err != nil {
				return err
			}
		}
	}
	return nil
}

// fail makes the next calls of verb on resource fail with these errors; nil
// lets one through.
func (c *cluster) fail(verb, resource string, answers ...error) {
	c.client.PrependReactor(verb, resource, func(ktesting.Action) (bool, kruntime.Object, error) {
		if len(answers) == 0 {
			return false, nil, nil
		}
		err := answers[0]
		answers = answers[1:]
		return err != nil, nil, err
	})
}
