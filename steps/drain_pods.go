package steps

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/client-go/kubernetes"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
	"k8s.io/kubectl/pkg/drain"

	"github.com/node-upgrader/node-upgrader/steps/kube"
)

// podList is what a drain finds on the node.
type podList struct {
	pods    []corev1.Pod // to be evicted
	refused []Block      // pods that the options do not allow to evict
}

// newHelper is kubectl's drain with the options as given. None of its zero
// values is safe: see https://pkg.go.dev/k8s.io/kubectl/pkg/drain#Helper.
func newHelper(ctx context.Context, env Env, client kubernetes.Interface, dryRun cmdutil.DryRunStrategy) *drain.Helper {
	o := env.Options.Drain
	selector := "!" + OwnLabel
	if o.PodSelector != "" {
		selector += "," + o.PodSelector
	}
	return &drain.Helper{
		Ctx: ctx, Client: client, Out: io.Discard, ErrOut: io.Discard,
		Force: o.Force, IgnoreAllDaemonSets: o.IgnoreDaemonSets, DeleteEmptyDirData: o.DeleteEmptyDirData,
		DisableEviction: o.DisableEviction, PodSelector: selector, ChunkSize: cmdutil.DefaultChunkSize,
		GracePeriodSeconds: wholeSeconds(o.GracePeriod, -1), SkipWaitForDeleteTimeoutSeconds: wholeSeconds(o.SkipWaitForDelete, 0),
		DryRunStrategy: dryRun,
	}
}

// wholeSeconds rounds up: a grace of half a second must not become "kill at
// once".
func wholeSeconds(d time.Duration, negative int) int {
	if d < 0 {
		return negative
	}
	return int(math.Ceil(d.Seconds()))
}

// listPods lists what has to go, with patience for an API server that is away.
// skip, when set, leaves pods out.
func listPods(ctx context.Context, env Env, client kubernetes.Interface, skip func(*corev1.Pod) bool) (podList, error) {
	var list podList
	err := kube.Retry(ctx, env.Clock.Sleep, func(ctx context.Context) error {
		helper := newHelper(ctx, env, client, cmdutil.DryRunNone)
		if skip != nil {
			helper.AdditionalFilters = []drain.PodFilter{func(pod corev1.Pod) drain.PodDeleteStatus {
				if skip(&pod) {
					return drain.MakePodDeleteStatusSkip()
				}
				return drain.MakePodDeleteStatusOkay()
			}}
		}
		found, errs := helper.GetPodsForDeletion(env.Node.Name)
		if found == nil {
			return errors.Join(errs...)
		}
		list = podList{pods: found.Pods()}
		for _, err := range errs {
			block, ok := refusal(err)
			if !ok {
				// A pod's controller could not be asked for; the library
				// leaves nothing of that but its text.
				return kube.Again(err)
			}
			list.refused = append(list.refused, block)
		}
		return nil
	})
	if err != nil {
		return podList{}, fmt.Errorf("list the pods of node %s: %w", env.Node.Name, err)
	}
	return list, nil
}

// refusal tells what kubectl's library refuses by its options, with the flag
// that would change its mind.
func refusal(err error) (Block, bool) {
	reason := err.Error()
	for _, hint := range []struct{ mark, hint string }{
		{"--ignore-daemonsets", "leave them where they are with --ignore-daemonsets"},
		{"--delete-emptydir-data", "their emptyDir volumes would be lost: allow it with --delete-emptydir-data"},
		{"--force", "nothing would make them again elsewhere: move them, or delete them with --force"},
		{"forbidden", "the credentials may not look at the pods' controllers: give others with --kubeconfig"},
		{"not found", "their DaemonSet is gone: delete them with --force"},
	} {
		if strings.Contains(reason, hint.mark) {
			return Block{Reason: reason, Hint: hint.hint}, true
		}
	}
	return Block{}, false
}

// remove asks for one pod's end: by eviction, or by deletion with
// --disable-eviction.
func remove(helper *drain.Helper, pod *corev1.Pod) error {
	if helper.DisableEviction {
		return helper.DeletePod(*pod)
	}
	return helper.EvictPod(*pod, policyv1.SchemeGroupVersion)
}

func podName(pod *corev1.Pod) string { return pod.Namespace + "/" + pod.Name }
