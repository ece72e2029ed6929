package steps

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func aNode(name string, edit ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: "1"},
		Status: corev1.NodeStatus{
			NodeInfo:   corev1.NodeSystemInfo{KubeletVersion: "v1.35.4"},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
	for _, e := range edit {
		e(n)
	}
	return n
}

func cordonedNode(by string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Spec.Unschedulable = true
		if by != "" {
			n.Annotations = map[string]string{cordonedBy: by}
			n.ManagedFields = unschedulableBy(fieldManager)
		}
	}
}

// foreignCordon is a cordon of somebody else's on a node that has kept the
// annotation of ours.
func foreignCordon(n *corev1.Node) {
	cordonedNode("run-1")(n)
	n.ManagedFields = append(unschedulableBy("kubectl-cordon"), metav1.ManagedFieldsEntry{
		Manager: fieldManager, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", FieldsType: "FieldsV1",
		FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:annotations":{"f:` + cordonedBy + `":{}}}}`),
	})
}

// unschedulableBy is how the API server names who wrote the cordon.
func unschedulableBy(manager string) []metav1.ManagedFieldsEntry {
	return []metav1.ManagedFieldsEntry{{
		Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", FieldsType: "FieldsV1",
		FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:unschedulable":{}}}`),
	}}
}

// aPod is a healthy pod on n1 of a ReplicaSet.
func aPod(name string, edit ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name), Labels: map[string]string{"app": "web"}},
		Spec:       corev1.PodSpec{NodeName: "n1"},
		Status: corev1.PodStatus{
			Phase:      corev1.PodRunning,
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		},
	}
	ownedBy("ReplicaSet")(p)
	for _, e := range edit {
		e(p)
	}
	return p
}

func ownedBy(kind string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		yes := true
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: kind, Name: "owner", Controller: &yes}}
		if kind == "" {
			p.OwnerReferences = nil
		}
	}
}

func labelled(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Labels = map[string]string{key: value} }
}

func mirrored(p *corev1.Pod) {
	p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
	ownedBy("")(p)
}

func unready(p *corev1.Pod) { p.Status.Conditions = nil }

func withEmptyDir(p *corev1.Pod) {
	p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
}

// aBudget covers app=web.
func aBudget(name string, allowed, healthy, desired int32, edit ...func(*policyv1.PodDisruptionBudget)) *policyv1.PodDisruptionBudget {
	b := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec: policyv1.PodDisruptionBudgetSpec{
			Selector:     &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
			MinAvailable: &intstr.IntOrString{IntVal: desired},
		},
		Status: policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: allowed, CurrentHealthy: healthy, DesiredHealthy: desired},
	}
	for _, e := range edit {
		e(b)
	}
	return b
}

// disturber is a step that a drain protects.
func disturber(state *State) Step {
	return Step{Name: "kubelet", Check: func(context.Context, Env) (State, error) { return *state, nil }}
}

func restarting() *State {
	return &State{Phase: Needed, Changes: []Change{{"restart", kubeletUnit}}}
}

func contextWithTimeout(t *testing.T, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(t.Context(), d, fmt.Errorf("no end after %s", d))
}
