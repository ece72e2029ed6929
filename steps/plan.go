package steps

import (
	"fmt"
	"slices"
	"strings"
)

// The names of the steps: a contract with orchestrators.
const (
	stepCopy       = "copy"
	stepContainerd = "containerd"
	stepCNIPlugins = "cni-plugins"
	stepKubeadm    = "kubeadm"
	stepDrain      = "drain"
	stepKubelet    = "kubelet"
	stepUncordon   = "uncordon"
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

// Only returns the named steps of a plan, in the plan's order; all without a
// name. A name that is no step's is a *UsageError.
func Only(plan []Step, names []string) ([]Step, error) {
	for _, name := range names {
		if !slices.Contains(Names(plan), name) {
			return nil, &UsageError{fmt.Sprintf("no step %q; the steps are: %s", name, strings.Join(Names(plan), ", "))}
		}
	}
	if len(names) == 0 {
		return plan, nil
	}
	return slices.DeleteFunc(slices.Clone(plan), func(s Step) bool { return !slices.Contains(names, s.Name) }), nil
}

// Names are the names of the steps, in order.
func Names(plan []Step) []string {
	names := make([]string, len(plan))
	for i, s := range plan {
		names[i] = s.Name
	}
	return names
}
