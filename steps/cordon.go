package steps

import (
	"context"
	"encoding/json"
	"fmt"
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
)

// ours tells whether the node's cordon is the upgrader's, of whatever run.
func ours(node *corev1.Node) bool {
	_, annotated := node.Annotations[cordonedBy]
	return annotated && node.Spec.Unschedulable
}

// cordon makes the node unschedulable in the name of this run. A node that
// somebody else has cordoned stays theirs; a cordon of an older run of ours is
// taken over.
func cordon(ctx context.Context, env Env, client kubernetes.Interface) (*corev1.Node, error) {
	node, err := patchNode(ctx, env, client, func(node *corev1.Node) map[string]any {
		if node.Annotations[cordonedBy] == env.Options.RunID && node.Spec.Unschedulable {
			return nil
		}
		if node.Spec.Unschedulable && !ours(node) {
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
		if _, annotated := node.Annotations[cordonedBy]; !annotated {
			return nil
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
			node, err = nodes.Patch(ctx, env.Node.Name, types.MergePatchType, data, metav1.PatchOptions{FieldManager: "upgrader"})
			return err
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
