package steps

import (
	"fmt"
	"slices"
	"strings"
)

// Plan returns the steps of an upgrade in their order.
//
// The drain and the uncordon are brackets: they are needed only while a step
// between them is. The drain stands right before the kubelet, whose minor
// version may change on a drained node only; with DrainFirst it stands before
// containerd, for those who want no restart under load.
func Plan(o Options) []Step {
	containerd, cni, kubeadm, kubelet := containerdStep(), cniPluginsStep(), kubeadmStep(), kubeletStep()
	if o.DrainFirst {
		drain, uncordon := drainStep(o.Drain.Timeout, containerd, kubelet), uncordonStep(containerd, kubelet)
		return []Step{copyStep(), drain, containerd, cni, kubeadm, kubelet, uncordon}
	}
	drain, uncordon := drainStep(o.Drain.Timeout, kubelet), uncordonStep(kubelet)
	return []Step{copyStep(), containerd, cni, kubeadm, drain, kubelet, uncordon}
}

// Named returns the step of this name.
func Named(plan []Step, name string) (Step, error) {
	i := slices.IndexFunc(plan, func(s Step) bool { return s.Name == name })
	if i < 0 {
		return Step{}, &UsageError{fmt.Sprintf("no step %q; the steps are: %s", name, strings.Join(Names(plan), ", "))}
	}
	return plan[i], nil
}

// Names are the names of the steps, in order.
func Names(plan []Step) []string {
	names := make([]string, len(plan))
	for i, s := range plan {
		names[i] = s.Name
	}
	return names
}
