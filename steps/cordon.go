package steps

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/node-upgrader/node-upgrader/steps/kube"
)

const (
	// cordonedBy on a Node has the run that made it unschedulable. It is
	// written in the same patch as the cordon, so that there is no instant at
	// which a cordon of ours could be taken for somebody else's.
	cordonedBy = "node-upgrader.dev/cordoned-by"
	// OwnLabel is on the upgrader's pods, whatever its value: no drain of ours
	// evicts them.
	OwnLabel = "node-upgrader.dev/upgrader"
	// fieldManager is whom the API server names as the owner of what we wrote.
	fieldManager = "upgrader"
)

// ours tells whether the node's cordon is the upgrader's, of whatever run. The
// annotation alone does not: `kubectl uncordon` leaves it, and a cordon that
// somebody makes later would be taken for ours. The API server keeps who wrote
// the field last. Where it says nothing of that the cordon is not ours, and
// stays.
func ours(node *corev1.Node) bool {
	_, annotated := node.Annotations[cordonedBy]
	return annotated && node.Spec.Unschedulable &&
		slices.ContainsFunc(node.ManagedFields, func(e metav1.ManagedFieldsEntry) bool {
			if e.Manager != fieldManager || e.Subresource != "" || e.FieldsV1 == nil {
				return false
			}
			var fields struct {
				Spec struct {
					Unschedulable *struct{} `json:"f:unschedulable"`
				} `json:"f:spec"`
			}
			return json.Unmarshal(e.FieldsV1.GetRawBytes(), &fields) == nil && fields.Spec.Unschedulable != nil
		})
}

// unannotated is the patch that takes an annotation away that has outlived its
// cordon; nil without one.
func unannotated(node *corev1.Node) map[string]any {
	if _, annotated := node.Annotations[cordonedBy]; !annotated {
		return nil
	}
	return map[string]any{"metadata": map[string]any{"annotations": map[string]any{cordonedBy: nil}}}
}

// cordon makes the node unschedulable in the name of this run. A node that
// somebody else has cordoned stays theirs; a cordon of an older run of ours is
// taken over.
func cordon(ctx context.Context, env Env, client kubernetes.Interface) (*corev1.Node, error) {
	node, err := patchNode(ctx, env, client, func(node *corev1.Node) map[string]any {
		switch {
		case node.Spec.Unschedulable && !ours(node):
			return unannotated(node)
		case node.Spec.Unschedulable && node.Annotations[cordonedBy] == env.Options.RunID:
			return nil
		}
		return map[string]any{
			"metadata": map[string]any{"annotations": map[string]any{cordonedBy: env.Options.RunID}},
			"spec":     map[string]any{"unschedulable": true},
		}
	})
	if err != nil {
		return nil, fmt.Errorf("cordon node %s: %w", env.Node.Name, err)
	}
	return node, nil
}

// release takes back the upgrader's cordon. Without one the node stays as it
// is, but for an annotation that has outlived its cordon.
func release(ctx context.Context, env Env, client kubernetes.Interface) error {
	_, err := patchNode(ctx, env, client, func(node *corev1.Node) map[string]any {
		if !ours(node) {
			return unannotated(node)
		}
		return map[string]any{
			"metadata": map[string]any{"annotations": map[string]any{cordonedBy: nil}},
			"spec":     map[string]any{"unschedulable": nil},
		}
	})
	if err != nil {
		return &HintError{
			Err:  fmt.Errorf("uncordon node %s: %w", env.Node.Name, err),
			Hint: "kubectl uncordon " + env.Node.Name,
		}
	}
	return nil
}

// patchNode applies what decide wants of the node as it is, on the condition
// that it still is so; when somebody else was faster it decides anew. It
// returns the node as it is then. A nil patch leaves it alone.
func patchNode(ctx context.Context, env Env, client kubernetes.Interface, decide func(*corev1.Node) map[string]any) (*corev1.Node, error) {
	nodes := client.CoreV1().Nodes()
	for {
		var node *corev1.Node
		err := kube.Retry(ctx, env.Clock.Sleep, func(ctx context.Context) error {
			found, err := nodes.Get(ctx, env.Node.Name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			patch := decide(found)
			if patch == nil {
				node = found
				return nil
			}
			patch["metadata"].(map[string]any)["resourceVersion"] = found.ResourceVersion //nolint:forcetypeassert // made above
			data, err := json.Marshal(patch)
			if err != nil {
				return err
			}
			return env.change("patch", "node/"+env.Node.Name, func() (err error) {
				node, err = nodes.Patch(ctx, env.Node.Name, types.MergePatchType, data, metav1.PatchOptions{FieldManager: fieldManager})
				return err
			})
		})
		// The kubelet and controllers write to the Node all the time.
		if !apierrors.IsConflict(err) || env.Clock.Sleep(ctx, 100*time.Millisecond) != nil {
			return node, err
		}
	}
}

// findNode reads the node, with patience for an API server that is away.
func findNode(ctx context.Context, env Env, client kubernetes.Interface) (*corev1.Node, error) {
	var node *corev1.Node
	err := kube.Retry(ctx, env.Clock.Sleep, func(ctx context.Context) (err error) {
		node, err = client.CoreV1().Nodes().Get(ctx, env.Node.Name, metav1.GetOptions{})
		return err
	})
	if apierrors.IsNotFound(err) {
		return nil, &HintError{
			Err:  fmt.Errorf("get node %s: %w", env.Node.Name, err),
			Hint: "kubectl get nodes: did this machine leave the cluster, or is --kubeconfig another cluster's?",
		}
	}
	if err != nil {
		return nil, fmt.Errorf("get node %s: %w", env.Node.Name, err)
	}
	return node, nil
}
