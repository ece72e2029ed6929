package steps

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/node-upgrader/node-upgrader/steps/cri/critest"
)

// sandbox has the new containerd make pods with an image of this name.
func (n *imagesNode) sandbox(name string) {
	n.dumps["2.3.7"] = strings.Replace(n.dumps["2.3.7"], "registry.k8s.io/pause:3.10.2", name, 1)
}

// CRI has images by whole names: what it asks for by less, or by a digest beside a
// tag, is brought under the name by which it will look.
func TestCopyBringsImagesUnderTheirWholeNames(t *testing.T) {
	n := newImagesNode(t, "myorg", "registry.k8s.io/kube-proxy:v1.36.3", "registry.k8s.io/coredns/coredns:v1.14.2", "registry.k8s.io/pause:3.10.2")
	digest, err := imageNamed(t, "registry.k8s.io/pause:3.10.2").Digest()
	n.must(err)
	other := "@sha256:e6693c20186f837fc393390135d8a598a96a833917917789d63766cab6c59582"
	for sandbox, want := range map[string]string{
		"pause:3.10.2": "docker.io/library/pause:3.10.2",
		"r.example/pause:3.10.2@" + digest.String(): "r.example/pause@" + digest.String(),
		"r.example/pulled/pause:3.10.2" + other:     "r.example/pulled/pause" + other,
		"r.example/pulled/pause":                    "r.example/pulled/pause:latest",
		"docker.io/myorg/kube-proxy:v1.36.3":        "docker.io/myorg/kube-proxy:v1.36.3",
	} {
		before := n.dumps["2.3.7"]
		n.sandbox(sandbox)
		n.runtime.Change(func(s *critest.State) {
			s.Stored = nil
			s.Registry = map[string]string{}
			if strings.Contains(want, "/pulled/") {
				s.Registry[want] = "sha256:3"
			}
		})
		if _, err := n.copies(); err != nil {
			t.Fatalf("%s: %v", sandbox, err)
		}
		names := []string{"docker.io/myorg/coredns:v1.14.2", "docker.io/myorg/kube-proxy:v1.36.3", want}
		slices.Sort(names)
		if diff := cmp.Diff(slices.Compact(names), slices.Sorted(maps.Keys(n.stored()))); diff != "" {
			t.Errorf("%s: %s", sandbox, diff)
		}
		if state, err := checkCopy(t.Context(), n.env); err != nil || state.Phase != Done {
			t.Errorf("%s, the second time: %+v %v", sandbox, state, err)
		}
		n.dumps["2.3.7"] = before
	}
}
