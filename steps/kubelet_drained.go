package steps

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/node-upgrader/node-upgrader/steps/kube"
)

// drainedPatience is how long the API server may be away before a kubelet's
// swap, which has not begun then, is given up.
const drainedPatience = 2 * time.Minute

// mustBeDrained refuses to change the kubelet's minor version under pods that a
// drain would have taken away. The new kubelet may not be able to take them
// over: https://k8s.io/releases/version-skew-policy/#kubelet
func mustBeDrained(ctx context.Context, env Env) error {
	ctx, cancel := context.WithTimeoutCause(ctx, drainedPatience, fmt.Errorf("no answer from the API server for %s", drainedPatience))
	defer cancel()
	client, err := env.Kube(ctx)
	if err != nil {
		return err
	}
	node, err := findNode(ctx, env, client)
	if err != nil {
		return err
	}
	have, err := version.ParseGeneric(node.Status.NodeInfo.KubeletVersion)
	if err != nil {
		return fmt.Errorf("kubeletVersion of node %s: %w", node.Name, err)
	}
	want, err := version.ParseGeneric(targetVersion(env.Bundle))
	if err != nil {
		return fmt.Errorf("the bundle's kubelet: %w", err)
	}
	if have.Major() == want.Major() && have.Minor() == want.Minor() {
		return nil
	}
	selector, err := labels.Parse(env.Options.Drain.PodSelector)
	if err != nil {
		return &UsageError{Reason: "--pod-selector: " + err.Error()}
	}
	var left []string
	err = kube.Retry(ctx, env.Clock.Sleep, func(ctx context.Context) error {
		pods, err := client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
			FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node.Name).String(),
		})
		if err != nil {
			return err
		}
		left = nil
		for _, p := range pods.Items {
			if selector.Matches(labels.Set(p.Labels)) && !stays(env, &p) {
				left = append(left, podName(&p))
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("list the pods of node %s: %w", node.Name, err)
	}
	if len(left) == 0 {
		return nil
	}
	slices.Sort(left)
	return &BlockedError{Blocks: []Block{{
		Reason: fmt.Sprintf("the kubelet goes from %s to %s on a drained node only; still here: %s", have, want, strings.Join(left, ", ")),
		Hint:   "upgrader drain",
	}}}
}

// stays tells whether a drain leaves the pod on the node.
func stays(env Env, p *corev1.Pod) bool {
	_, mirror := p.Annotations[corev1.MirrorPodAnnotationKey]
	_, own := p.Labels[OwnLabel]
	owner := metav1.GetControllerOf(p)
	skip := env.Options.Drain.SkipWaitForDelete
	switch {
	case mirror, own, toleratesCordon(p):
		return true
	case owner != nil && owner.Kind == "DaemonSet":
		return true
	case p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed:
		return true
	default:
		return p.DeletionTimestamp != nil && skip > 0 && env.Clock.Now().Sub(p.DeletionTimestamp.Time) > skip
	}
}
