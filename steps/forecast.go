package steps

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"

	"github.com/node-upgrader/node-upgrader/steps/kube"
)

// Forecast looks at the drain alone, and changes nothing. That it cannot be told
// what the drain would meet is an error.
func (r Runner) Forecast(ctx context.Context) (Report, error) {
	report := Report{
		Schema: 1, Node: r.Env.Node, RunID: r.Env.Options.RunID,
		Bundle: r.Env.Bundle.Digest, Kubernetes: r.Env.Bundle.Manifest.KubernetesVersion,
	}
	var err error
	if report.SignedBy, err = CheckSignature(r.Env); err != nil {
		return report, err
	}
	for _, step := range r.Plan {
		if step.Name != "drain" {
			continue
		}
		state, err := step.Check(ctx, r.Env)
		if err != nil {
			return report, fmt.Errorf("forecast the drain: %w", err)
		}
		report.Steps = append(report.Steps, StepReport{Name: step.Name, Short: step.Short, State: state})
	}
	return report, nil
}

// forecastDrain names, before anything is cordoned, everything that would make
// the drain hang or fail: pods that the options do not allow to evict, budgets
// that allow no disruption, and whatever the API server answers to a dry run
// of each eviction. It changes nothing.
//
// A budget that allows at least one disruption is no block even when more of
// its pods are here: they go one by one as their replacements get ready. Only
// when there is no other node for a replacement is the whole number needed.
func forecastDrain(ctx context.Context, env Env, client kubernetes.Interface, list podList) ([]Block, error) {
	blocks := list.refused
	if env.Options.Drain.DisableEviction { // deletion asks no budget
		return blocks, nil
	}
	all, err := listBudgets(ctx, env, client, list.pods)
	if err != nil {
		return nil, err
	}
	f := &forecast{env: env, client: client, blocked: map[string]bool{}}
	if err := f.count(ctx, list.pods, all); err != nil {
		return nil, err
	}
	if err := f.dryRun(ctx, list.pods); err != nil {
		return nil, err
	}
	return append(blocks, f.blocks...), nil
}

type forecast struct {
	env     Env
	client  kubernetes.Interface
	blocks  []Block
	blocked map[string]bool // pods that a block names already
}

func (f *forecast) block(hint, reason string, pods ...string) {
	f.blocks = append(f.blocks, Block{Reason: reason + ": " + strings.Join(pods, ", "), Hint: hint})
	for _, p := range pods {
		f.blocked[p] = true
	}
}

// count is the budgets' arithmetic.
func (f *forecast) count(ctx context.Context, pods []corev1.Pod, all budgets) error {
	counted := map[string][]string{} // by budget
	for _, p := range pods {
		covering := all.of(&p)
		switch {
		case uncounted(&p) || len(covering) == 0:
		case len(covering) > 1:
			f.block(covering[0].hint(), fmt.Sprintf("budgets %s/%s and %s cover one pod, which the eviction API refuses",
				p.Namespace, covering[0].Name, covering[1].Name), podName(&p))
		case !covering[0].exempts(&p):
			key := p.Namespace + "/" + covering[0].Name
			counted[key] = append(counted[key], podName(&p))
		}
	}
	for _, b := range all { // in the order of the list, so that the answer is always the same
		here, allowed := counted[b.Namespace+"/"+b.Name], int(b.Status.DisruptionsAllowed)
		if len(here) <= allowed {
			continue
		}
		if allowed == 0 {
			f.block(b.hint(), "budget "+b.String(), here...)
			continue
		}
		elsewhere, err := f.elsewhere(ctx)
		if err != nil {
			return err
		}
		if !elsewhere {
			f.block(b.hint(), fmt.Sprintf("budget %s and there is no other node for replacements of %d pods", b, len(here)), here...)
		}
	}
	return nil
}

// elsewhere tells whether another node may take pods. Where that may not be
// asked, the answer is yes: the drain's deadline will tell.
func (f *forecast) elsewhere(ctx context.Context) (bool, error) {
	var nodes *corev1.NodeList
	err := kube.Retry(ctx, f.env.Clock.Sleep, func(ctx context.Context) (err error) {
		nodes, err = f.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		return err
	})
	if apierrors.IsForbidden(err) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("list the nodes: %w", err)
	}
	for _, n := range nodes.Items {
		if n.Name != f.env.Node.Name && !n.Spec.Unschedulable && readyCondition(&n).Status == corev1.ConditionTrue {
			return true, nil
		}
	}
	return false, nil
}

// dryRun asks the API server itself, which knows its admission webhooks too.
func (f *forecast) dryRun(ctx context.Context, pods []corev1.Pod) error {
	for _, p := range pods {
		name := podName(&p)
		if f.blocked[name] || p.DeletionTimestamp != nil {
			continue
		}
		err := kube.Retry(ctx, f.env.Clock.Sleep, func(ctx context.Context) error {
			err := remove(newHelper(ctx, f.env, f.client, cmdutil.DryRunServer), &p)
			if err != nil && apierrors.HasStatusCause(err, policyv1.DisruptionBudgetCause) {
				return &answeredError{err} // not an overload: waiting is what the drain is for
			}
			return err
		})
		switch {
		case err == nil, apierrors.IsNotFound(err), terminating(err):
		case apierrors.IsBadRequest(err) && strings.Contains(err.Error(), "dry run"):
			// A webhook that cannot do dry runs: the real eviction will tell.
		case ctx.Err() != nil:
			return err
		case apierrors.IsForbidden(err) && !webhook(err):
			f.block("the drain needs the right to create pods/eviction: upgrader manifests rbac, or another --kubeconfig",
				"evictions are not allowed ("+err.Error()+")", name)
			return nil // it would be the same for each pod
		default:
			f.block("kubectl --namespace "+p.Namespace+" describe pod "+p.Name, "the API server refuses the eviction ("+err.Error()+")", name)
		}
	}
	return nil
}

// answeredError hides from kube.Retry that a "too many requests" is one.
type answeredError struct{ err error }

func (e *answeredError) Error() string { return budgetCause(e.err) }

// budgetCause is the budget's own word in a refused eviction: it names it.
func budgetCause(err error) string {
	var status apierrors.APIStatus
	if errors.As(err, &status) && status.Status().Details != nil {
		for _, c := range status.Status().Details.Causes {
			if c.Type == policyv1.DisruptionBudgetCause && c.Message != "" {
				return c.Message
			}
		}
	}
	return err.Error()
}

func webhook(err error) bool { return strings.Contains(err.Error(), "admission webhook") }
