package steps

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"

	"github.com/node-upgrader/node-upgrader/steps/kube"
)

// budget is a PodDisruptionBudget with its selector made ready.
type budget struct {
	*policyv1.PodDisruptionBudget
	selector labels.Selector
}

// String says what the budget allows, after the word "budget".
func (b budget) String() string {
	return fmt.Sprintf("%s/%s allows %d disruptions (%d healthy, %d wanted)",
		b.Namespace, b.Name, b.Status.DisruptionsAllowed, b.Status.CurrentHealthy, b.Status.DesiredHealthy)
}

func (b budget) hint() string {
	return fmt.Sprintf("kubectl --namespace %s describe poddisruptionbudget %s: make its pods healthy elsewhere, or change it", b.Namespace, b.Name)
}

// exempts tells whether the eviction API lets a pod go without counting it,
// as https://k8s.io/docs/tasks/run-application/configure-pdb/#unhealthy-pod-eviction-policy
// has it.
func (b budget) exempts(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			return false
		}
	}
	if policy := b.Spec.UnhealthyPodEvictionPolicy; policy != nil && *policy == policyv1.AlwaysAllow {
		return true
	}
	return b.Status.CurrentHealthy >= b.Status.DesiredHealthy && b.Status.DesiredHealthy > 0
}

type budgets []budget

// of returns the budgets that cover a pod.
func (bs budgets) of(p *corev1.Pod) []budget {
	var covering []budget
	for _, b := range bs {
		if b.Namespace == p.Namespace && b.selector.Matches(labels.Set(p.Labels)) {
			covering = append(covering, b)
		}
	}
	return covering
}

// uncounted are the pods that the eviction API lets go whatever a budget says.
func uncounted(p *corev1.Pod) bool {
	switch p.Status.Phase {
	case corev1.PodSucceeded, corev1.PodFailed, corev1.PodPending:
		return true
	default:
		return p.DeletionTimestamp != nil
	}
}

// listBudgets lists the budgets of the pods' namespaces.
func listBudgets(ctx context.Context, env Env, client kubernetes.Interface, pods []corev1.Pod) (budgets, error) {
	var namespaces []string
	for _, p := range pods {
		namespaces = append(namespaces, p.Namespace)
	}
	slices.Sort(namespaces)
	var all budgets
	for _, ns := range slices.Compact(namespaces) {
		err := kube.Retry(ctx, env.Clock.Sleep, func(ctx context.Context) error {
			list, err := client.PolicyV1().PodDisruptionBudgets(ns).List(ctx, metav1.ListOptions{})
			if err != nil {
				return err
			}
			for i := range list.Items {
				selector, err := metav1.LabelSelectorAsSelector(list.Items[i].Spec.Selector)
				if err != nil {
					return fmt.Errorf("budget %s/%s: %w", ns, list.Items[i].Name, err)
				}
				all = append(all, budget{&list.Items[i], selector})
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("list the disruption budgets of namespace %s: %w", ns, err)
		}
	}
	return all, nil
}
