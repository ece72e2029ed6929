package steps

import (
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

func TestKubeletCheck(t *testing.T) {
	config := func(text string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kubelet-config"}, Data: map[string]string{"kubelet": text}}
	}
	gone := "kind: KubeletConfiguration\nfeatureGates: {Gone: true}\n"
	unit := func(edit func(*hostexec.Unit)) func(*kubeletNode) {
		return func(n *kubeletNode) {
			u, _ := n.units.Show(context.Background(), kubeletUnit)
			edit(&u)
			n.units.Put(u)
		}
	}
	for _, tc := range []struct {
		name    string
		objects []kruntime.Object
		set     func(*kubeletNode)
		want    Phase
		changes string
		blocks  string
		err     string
	}{
		{name: "needed", want: Needed, changes: "replace /usr/bin/kubelet, replace /usr/local/bin/kubectl, restart kubelet.service"},
		{name: "done", set: upgradeKubelet, want: Done},
		{
			name: "the old program still runs", set: func(n *kubeletNode) {
				n.write("/usr/bin/kubelet", newKubelet)
				n.write("/usr/local/bin/kubectl", "kubectl v1.36.3")
			},
			want: Needed, changes: "restart kubelet.service",
		},
		{
			name: "no kubectl", set: func(n *kubeletNode) { upgradeKubelet(n); _ = n.env.Host.FS.Remove("/usr/local/bin/kubectl") },
			want: Needed, changes: "replace /usr/bin/kubectl",
		},
		{name: "not healthy", set: func(n *kubeletNode) { upgradeKubelet(n); n.healthz = false }, want: Needed},
		{name: "not ready", set: func(n *kubeletNode) {
			upgradeKubelet(n)
			node := n.node().DeepCopy()
			notReady(node)
			n.touch(node)
		}, want: Needed},
		{name: "the heartbeat is older than the process", set: func(n *kubeletNode) { upgradeKubelet(n); n.stat(101, -3e9) }, want: Needed},
		{name: "the API server is away", set: func(n *kubeletNode) {
			upgradeKubelet(n)
			n.fail("get", "nodes", apiError(403))
		}, err: "get node n1"},
		{name: "no API server is asked while the files differ", set: func(n *kubeletNode) {
			n.env.Kube = func(context.Context) (kubernetes.Interface, error) { return nil, errors.New("down") }
		}, want: Needed, changes: "replace /usr/bin/kubelet, replace /usr/local/bin/kubectl, restart kubelet.service"},
		{name: "no unit", set: func(n *kubeletNode) { n.units = nil; n.env.Host.Units = noUnits(n.t) }, want: Blocked, blocks: "systemd has no unit kubelet.service"},
		{name: "masked", set: unit(func(u *hostexec.Unit) { u.LoadState = "masked" }), want: Blocked, blocks: "kubelet.service is masked"},
		{name: "a wrapper", set: unit(func(u *hostexec.Unit) { u.ExecStart = [][]string{{"/bin/sh", "-c", "kubelet"}} }), want: Blocked, blocks: "starts /bin/sh, which is not a kubelet"},
		{name: "a flag that kubeadm 1.36 leaves alone", set: func(n *kubeletNode) {
			n.write(kubeletFlagsFile, `KUBELET_KUBEADM_ARGS="--pod-infra-container-image=pause"`)
		}, want: Blocked, blocks: "unknown flag: --pod-infra-container-image", changes: "replace /usr/bin/kubelet, replace /usr/local/bin/kubectl, restart kubelet.service"},
		{name: "a flag that kubeadm 1.35 takes away", set: func(n *kubeletNode) {
			n.write(kubeletFlagsFile, `KUBELET_KUBEADM_ARGS="--pod-infra-container-image=pause --node-ip=10.0.0.1"`)
			n.env.Bundle.Manifest.Components[1].Version = "v1.35.4"
		}, want: Needed, changes: "replace /usr/bin/kubelet, replace /usr/local/bin/kubectl, restart kubelet.service"},
		{
			name: "a gate that kubeadm will take away", objects: []kruntime.Object{config("kind: KubeletConfiguration\n")},
			set:  func(n *kubeletNode) { n.write("/var/lib/kubelet/config.yaml", gone) },
			want: Needed, changes: "replace /usr/bin/kubelet, replace /usr/local/bin/kubectl, restart kubelet.service",
		},
		{
			name: "a gate that kubeadm will bring", objects: []kruntime.Object{config(gone)}, want: Blocked, blocks: "the cluster's configuration, which kubeadm will write to this node: failed to merge",
			changes: "replace /usr/bin/kubelet, replace /usr/local/bin/kubectl, restart kubelet.service",
		},
		{
			name: "a gate that stays", objects: []kruntime.Object{config(gone)}, set: func(n *kubeletNode) { n.write("/var/lib/kubelet/config.yaml", gone) }, want: Blocked,
			blocks: "this node's flags or configuration: failed to merge", changes: "replace /usr/bin/kubelet, replace /usr/local/bin/kubectl, restart kubelet.service",
		},
		{
			name: "it cannot be tried here", set: func(n *kubeletNode) { n.env.Host.Commands = unable{} }, want: Needed,
			changes: "replace /usr/bin/kubelet, replace /usr/local/bin/kubectl, restart kubelet.service",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := newKubeletNode(t, tc.objects...)
			if tc.set != nil {
				tc.set(n)
			}
			state, err := n.step.Check(t.Context(), n.env)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("got %v", err)
				}
				return
			}
			if err != nil || state.Phase != tc.want {
				t.Fatalf("%+v, %v", state, err)
			}
			var changes, blocks []string
			for _, ch := range state.Changes {
				changes = append(changes, ch.Verb+" "+ch.Object)
			}
			for _, b := range state.Blocks {
				blocks = append(blocks, b.Reason)
			}
			if got := strings.Join(changes, ", "); got != tc.changes {
				t.Errorf("changes %q, want %q", got, tc.changes)
			}
			if got := strings.Join(blocks, ", "); !strings.Contains(got, tc.blocks) || tc.blocks == "" && got != "" {
				t.Errorf("blocks %q, want %q", got, tc.blocks)
			}
			if n.units != nil {
				if starts, stops := n.units.Count(kubeletUnit); starts+stops != 0 {
					t.Error("the check has restarted the kubelet")
				}
			}
		})
	}
}
