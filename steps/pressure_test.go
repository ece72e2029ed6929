package steps

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

func TestPressureBlocks(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
		{Type: corev1.NodeDiskPressure, Status: corev1.ConditionTrue, Message: "disk is short"},
		{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionFalse},
		{Type: corev1.NodeReady, Status: corev1.ConditionTrue},
	}}}
	env := Env{Node: Node{Name: "n"}, Kube: func(context.Context) (kubernetes.Interface, error) { return fake.NewClientset(node), nil }}
	blocks := pressure(t.Context(), env)
	if len(blocks) != 1 || !strings.Contains(blocks[0].Reason, "DiskPressure (disk is short)") {
		t.Errorf("%+v", blocks)
	}
	env.Kube = func(context.Context) (kubernetes.Interface, error) { return nil, errors.New("away") }
	if blocks := pressure(t.Context(), env); len(blocks) != 0 {
		t.Errorf("without an API server: %+v", blocks)
	}
}

func TestEvictionReserve(t *testing.T) {
	for _, tc := range []struct {
		name, config string
		size, want   uint64
	}{
		{"the kubelet's default", "", 1000, 100},
		{"nothing said of the disk", "evictionHard: {memory.available: 100Mi}", 1000, 100},
		{"a part", "evictionHard: {nodefs.available: 2.5%}", 1000, 25},
		{"an amount", "evictionHard: {nodefs.available: 1Gi}", 1000, 1 << 30},
		{"nonsense", "evictionHard: {nodefs.available: much}", 1000, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			root := t.TempDir()
			if err := os.MkdirAll(filepath.Join(root, "var/lib/kubelet"), 0o755); err != nil {
				t.Fatal(err)
			}
			if tc.config != "" {
				if err := os.WriteFile(filepath.Join(root, "var/lib/kubelet/config.yaml"), []byte(tc.config), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			env := Env{Host: hostexec.Host{FS: hostexec.NewFS(root)}}
			space, err := env.Host.FS.Free("/var/lib/kubelet")
			if err != nil {
				t.Fatal(err)
			}
			space.Size = tc.size
			if got := evictionReserve(env, space); got != tc.want {
				t.Errorf("%d, want %d", got, tc.want)
			}
			space.ID[0]++ // another file system
			if got := evictionReserve(env, space); got != 0 {
				t.Errorf("on another file system: %d", got)
			}
		})
	}
}
