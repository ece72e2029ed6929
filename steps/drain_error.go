package steps

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// gaveUp is the error of a drain whose time is up, or that was told to stop;
// last is what kept it from asking. On its own deadline it names each pod that
// is left, and why.
func (e *evictions) gaveUp(ctx context.Context, last error) error {
	cause := context.Cause(ctx)
	var deadline *drainDeadline
	if !errors.As(cause, &deadline) {
		return fmt.Errorf("drain node %s: %w", e.env.Node.Name, cause)
	}
	if len(e.left) == 0 {
		if last == nil {
			last = cause
		}
		return fmt.Errorf("drain node %s: %w", e.env.Node.Name, last)
	}
	back, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	budgets, err := listBudgets(back, e.env, e.client, e.left)
	if err != nil {
		e.env.Log.Warn("the pods' disruption budgets cannot be named", "reason", err.Error())
	}
	var blocked BlockedError
	for _, p := range e.left {
		blocked.Blocks = append(blocked.Blocks, e.holdup(&p, budgets.of(&p)))
	}
	return e.refuse(fmt.Errorf("drain node %s: %w: %w", e.env.Node.Name, cause, &blocked))
}

// holdup is why one pod is still there.
func (e *evictions) holdup(p *corev1.Pod, budgets []budget) Block {
	name := podName(p)
	if p.DeletionTimestamp != nil {
		// A pod's deletion timestamp is the end of its grace period.
		reason := fmt.Sprintf("pod %s is terminating, its grace period ends at %s", name, p.DeletionTimestamp.UTC().Format(time.RFC3339))
		if len(p.Finalizers) > 0 {
			reason += ", finalizers " + strings.Join(p.Finalizers, ", ")
		}
		return Block{reason, "kubectl --namespace " + p.Namespace + " describe pod " + p.Name}
	}
	for _, b := range budgets {
		if b.Status.DisruptionsAllowed == 0 || len(budgets) > 1 {
			return Block{fmt.Sprintf("pod %s: budget %s", name, b), b.hint()}
		}
	}
	reason := "not asked for yet"
	if err := e.refused[name]; err != nil {
		reason = err.Error()
	}
	return Block{fmt.Sprintf("pod %s: %s", name, reason), "kubectl --namespace " + p.Namespace + " describe pod " + p.Name}
}

// refuse keeps a *BlockedError, which says that nothing was changed, to the
// drains that evicted nothing.
func (e *evictions) refuse(err error) error {
	var blocked *BlockedError
	if len(e.accepted) == 0 || !errors.As(err, &blocked) {
		return err
	}
	hints := make([]string, 0, len(blocked.Blocks))
	for _, b := range blocked.Blocks {
		if !slices.Contains(hints, b.Hint) {
			hints = append(hints, b.Hint)
		}
	}
	return &HintError{
		Err:  fmt.Errorf("%s (%d pods were evicted)", err.Error(), len(e.accepted)), //nolint:errorlint // a BlockedError must not be found in it
		Hint: strings.Join(hints, "; "),
	}
}
