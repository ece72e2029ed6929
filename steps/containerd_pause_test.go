package steps

import (
	"strings"
	"testing"

	"github.com/node-upgrader/node-upgrader/steps/cri/critest"
)

func TestContainerdSandboxImage(t *testing.T) {
	const (
		old = "\n[plugins.\"io.containerd.grpc.v1.cri\"]\nsandbox_image = 'registry.k8s.io/pause:3.8'\n"
		now = "\n[plugins.'io.containerd.cri.v1.images'.pinned_images]\nsandbox = 'registry.k8s.io/pause:3.10.2'\n"
	)
	for name, c := range map[string]struct {
		prepare func(*containerdNode)
		blocked bool
	}{
		"another default, not on the node": {func(*containerdNode) {}, true},
		"another default, on the node": {
			func(n *containerdNode) {
				n.runtime.Change(func(s *critest.State) { s.Images = map[string]string{"registry.k8s.io/pause:3.10.2": "sha256:1"} })
			},
			false,
		},
		"a configured one": {
			func(n *containerdNode) {
				n.dumps["1.7.35"] = strings.Replace(n.dumps["1.7.35"], "3.8", "3.9", 1)
				n.dumps["2.3.7"] = strings.Replace(n.dumps["2.3.7"], "3.10.2", "3.9", 1)
			},
			false,
		},
		"containerd is down": {func(n *containerdNode) { n.must(n.units.Stop(n.t.Context(), containerdUnit)) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			n := newContainerdNode(t)
			n.dumps["1.7.35"] += old
			n.dumps["2.3.7"] += now
			c.prepare(n)
			state := n.check()
			if (state.Phase == Blocked) != c.blocked {
				t.Fatalf("%+v", state)
			}
			if !c.blocked {
				return
			}
			want := "containerd 2.3.7 starts pods with registry.k8s.io/pause:3.10.2, which is not on this node"
			if b := state.Blocks; len(b) != 1 || b[0].Reason != want || !strings.Contains(b[0].Hint, "ctr -n k8s.io images import") {
				t.Errorf("%+v", b)
			}
		})
	}
}
