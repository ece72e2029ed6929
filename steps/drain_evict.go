package steps

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"

	"github.com/node-upgrader/node-upgrader/steps/kube"
)

// evictions empties the node. kubectl's own loop gives a pod up at the first
// answer that is not "too many requests"; this one lists again and goes on
// until the node is empty or its time is up, through an API server's absence.
type evictions struct {
	env    Env
	client kubernetes.Interface

	accepted map[types.UID]bool
	// refused is the last answer for each pod that is still there, by name.
	refused map[string]error
	// left are the pods of the last look.
	left []corev1.Pod
	// known are the pods that were there after the cordon.
	known map[types.UID]bool
}

func (e *evictions) all(ctx context.Context) error {
	e.accepted = map[types.UID]bool{}
	for {
		list, err := listPods(ctx, e.env, e.client, e.isNew)
		if err == nil && len(list.pods)+len(list.refused) == 0 {
			return nil
		}
		if err == nil {
			e.left = list.pods
		}
		if err == nil && len(list.refused) > 0 {
			return e.refuse(&BlockedError{Blocks: list.refused})
		}
		if err == nil {
			err = e.round(ctx, list.pods)
		}
		if err == nil {
			err = e.env.Clock.Sleep(ctx, time.Second)
		}
		if ctx.Err() != nil {
			return e.gaveUp(ctx, err)
		}
		if err != nil {
			return fmt.Errorf("drain node %s: %w", e.env.Node.Name, err)
		}
	}
}

// round asks for the end of each pod that is not ending yet. An error is one
// that waiting does not mend.
func (e *evictions) round(ctx context.Context, pods []corev1.Pod) error {
	if e.known == nil {
		e.known = map[types.UID]bool{}
		for _, p := range pods {
			e.known[p.UID] = true
		}
	}
	e.refused = map[string]error{}
	helper := newHelper(ctx, e.env, e.client, cmdutil.DryRunNone)
	for _, p := range pods {
		if p.DeletionTimestamp != nil {
			continue
		}
		err := e.env.change("evict", podName(&p), func() error { return remove(helper, &p) })
		switch {
		case err == nil:
			if !e.accepted[p.UID] {
				e.env.Log.Info("evicted", "pod", podName(&p), "grace", graceOf(&p))
			}
			e.accepted[p.UID] = true
		case apierrors.IsNotFound(err):
		case ctx.Err() != nil:
			return nil
		case kube.Transient(err), terminating(err):
			e.env.Log.Debug("will be asked again", "pod", podName(&p), "reason", err.Error())
			e.refused[podName(&p)] = err
		default:
			return fmt.Errorf("evict %s: %w", podName(&p), err)
		}
	}
	return nil
}

// isNew tells whether a pod came after the cordon by tolerating it. Its
// controller would make it again for ever, so that it counts as a DaemonSet's.
func (e *evictions) isNew(pod *corev1.Pod) bool {
	if e.known == nil || e.known[pod.UID] {
		return false
	}
	return toleratesCordon(pod)
}

func toleratesCordon(pod *corev1.Pod) bool {
	for _, t := range pod.Spec.Tolerations {
		key := t.Key == corev1.TaintNodeUnschedulable || t.Key == "" && t.Operator == corev1.TolerationOpExists
		if key && (t.Effect == "" || t.Effect == corev1.TaintEffectNoSchedule) {
			return true
		}
	}
	return false
}

func graceOf(p *corev1.Pod) string {
	if p.Spec.TerminationGracePeriodSeconds == nil {
		return "30s"
	}
	return (time.Duration(*p.Spec.TerminationGracePeriodSeconds) * time.Second).String()
}

// terminating is an eviction in a namespace that is being deleted: it is
// forbidden, and the pod goes by itself.
func terminating(err error) bool {
	return apierrors.IsForbidden(err) && apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause)
}
