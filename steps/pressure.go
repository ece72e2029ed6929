package steps

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

// pressure blocks an upgrade of a node that its kubelet says is short of
// something: it evicts pods then, deletes images that cannot be pulled again on
// an air-gapped node, and does not start a static pod's new version, which
// kubeadm waits for in vain. Nothing when the API server cannot be asked.
func pressure(ctx context.Context, env Env) []Block {
	client, err := env.Kube(ctx)
	if err != nil {
		return nil
	}
	node, err := getNode(ctx, client, env.Node.Name)
	if err != nil {
		return nil
	}
	var blocks []Block
	for _, c := range node.Status.Conditions {
		switch c.Type {
		case corev1.NodeDiskPressure, corev1.NodeMemoryPressure, corev1.NodePIDPressure:
		default:
			continue
		}
		if c.Status == corev1.ConditionTrue {
			blocks = append(blocks, Block{
				Reason: fmt.Sprintf("the node reports %s (%s): the kubelet evicts pods, and would not start a new control plane", c.Type, c.Message),
				Hint:   fmt.Sprintf("kubectl describe node %s; free what is short, and wait until the condition is False", node.Name),
			})
		}
	}
	return blocks
}

// evictionReserve is how many bytes have to stay free on a file system where it
// is that of the kubelet's own directory: less, and the kubelet evicts pods. 10 % is the kubelet's default
// (https://kubernetes.io/docs/concepts/scheduling-eviction/node-pressure-eviction/).
func evictionReserve(env Env, on hostexec.Space) uint64 {
	if nodefs, err := env.Host.FS.Free("/var/lib/kubelet"); err != nil || nodefs.ID != on.ID {
		return 0
	}
	threshold := "10%"
	if data, err := env.Host.FS.ReadFile("/var/lib/kubelet/config.yaml"); err == nil {
		var config struct {
			EvictionHard map[string]string `json:"evictionHard"`
		}
		// A file that cannot be read as YAML is the kubelet step's to refuse.
		if yaml.Unmarshal(data, &config) == nil && config.EvictionHard["nodefs.available"] != "" {
			threshold = config.EvictionHard["nodefs.available"]
		}
	}
	if percent, ok := strings.CutSuffix(threshold, "%"); ok {
		p, err := strconv.ParseFloat(percent, 64)
		if err != nil || p < 0 || p > 100 {
			return 0
		}
		return uint64(p / 100 * float64(on.Size))
	}
	q, err := resource.ParseQuantity(threshold)
	if err != nil || q.Sign() < 0 {
		return 0
	}
	return uint64(q.Value()) //nolint:gosec // not negative
}
