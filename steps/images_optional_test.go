package steps

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/node-upgrader/node-upgrader/steps/cri/critest"
)

// A worker upgrades without the add-ons that its cluster may not have, or that the
// kubelet alone may pull: it is told of them. Without a sandbox image it could
// start no pod.
func TestCopyOnAWorkerWithoutTheAddOns(t *testing.T) {
	n := newImagesNode(t, "r.example/k8s")
	proxy, dns, sandbox := "r.example/k8s/kube-proxy:v1.36.3", "r.example/k8s/coredns:v1.14.2", "registry.k8s.io/pause:3.10.2"
	n.runtime.Change(func(s *critest.State) { s.Registry = map[string]string{dns: "sha256:c"} })
	var blocked *BlockedError
	if _, err := n.copies(); !errors.As(err, &blocked) || !strings.Contains(err.Error(), "image "+sandbox+" is not on this node") || strings.Contains(err.Error(), "kube-proxy") {
		t.Fatalf("without a sandbox image: %v", err)
	}
	n.runtime.Change(func(s *critest.State) { s.Images = map[string]string{sandbox: "sha256:3"} })
	state, err := n.copies()
	n.must(err)
	told := func(state State) bool {
		return slices.ContainsFunc(state.Facts, func(f Fact) bool {
			return f.Name == proxy && strings.Contains(f.Have, "not on this node") && strings.Contains(f.Have, "ctr -n k8s.io images import")
		})
	}
	if !told(state) || !slices.Contains(state.Changes, Change{"pull", proxy}) || !slices.Contains(state.Changes, Change{"pull", dns}) {
		t.Errorf("the plan: %+v", state)
	}
	for _, want := range []string{"level=WARN", proxy, "no registry answers", "crictl pull " + proxy} {
		if !strings.Contains(n.log.String(), want) {
			t.Errorf("the log has no %q: %s", want, n.log)
		}
	}
	if have := n.stored(); len(have) != 1 || have[dns].PinnedBy != n.env.Bundle.Digest {
		t.Errorf("%+v", have)
	}
	if state, err := checkCopy(t.Context(), n.env); err != nil || state.Phase != Done || !told(state) {
		t.Errorf("the second time: %+v %v", state, err)
	}
	// Images alone may be brought again at any time.
	n.effects = nil
	if results, err := (Runner{Env: n.env}).BringImages(t.Context()); err != nil || results[0].Result != "unchanged" || !slices.Equal(n.effects, []string{"pull-image " + proxy}) {
		t.Errorf("%+v %v %v", results, err, n.effects)
	}
	n.runtime.Change(func(s *critest.State) { s.Registry[proxy] = "sha256:p" })
	if results, err := (Runner{Env: n.env}).BringImages(t.Context()); err != nil || results[0].Result != "done" || n.stored()[proxy].PinnedBy == "" {
		t.Errorf("%+v %v", results, err)
	}
}
