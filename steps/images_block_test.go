package steps

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/node-upgrader/node-upgrader/steps/cri/critest"
)

// What blocks, blocks before anything is pulled or imported: in the copy step, and
// in kubeadm's, which looks again.
func TestABlockKeepsImagesFromBeingBrought(t *testing.T) {
	for name, run := range map[string]func(*imagesNode) error{
		"copy":    func(n *imagesNode) error { return runCopy(t.Context(), n.env) },
		"kubeadm": func(n *imagesNode) error { return haveImages(t.Context(), n.env) },
	} {
		t.Run(name, func(t *testing.T) {
			n := newImagesNode(t, "registry.k8s.io", "registry.k8s.io/pause:3.10.2", "registry.k8s.io/coredns/coredns:v1.14.2")
			n.runtime.Change(func(s *critest.State) {
				s.Images = map[string]string{"registry.k8s.io/pause:3.10.2": "sha256:other"}
				s.Registry = map[string]string{"registry.k8s.io/kube-proxy:v1.36.3": "sha256:p"}
			})
			var blocked *BlockedError
			if err := run(n); !errors.As(err, &blocked) || !strings.Contains(err.Error(), "pause:3.10.2 is on this node as sha256:other") {
				t.Errorf("%v", err)
			}
			if len(n.effects) > 0 || len(n.stored()) > 0 {
				t.Errorf("%v %v", n.effects, n.stored())
			}
		})
	}
}

// kubeadm's step imports as much as copy would have, onto a disk that may have
// filled meanwhile.
func TestKubeadmNeedsRoomForImages(t *testing.T) {
	n := newImagesNode(t, "registry.k8s.io", "registry.k8s.io/pause:3.10.2")
	n.write(kubeletConfig, kubeletConfigAt("v1.36.3")+"evictionHard: {nodefs.available: 1Ei}\n", 0o644)
	var blocked *BlockedError
	if err := haveImages(t.Context(), n.env); !errors.As(err, &blocked) || !strings.Contains(err.Error(), "disk: /var/lib/containerd has") || len(n.effects) > 0 {
		t.Errorf("%v %v", err, n.effects)
	}
}

// Once kubeadm has begun, what blocks is no refusal any more: the node is not as
// it was.
func TestRefuse(t *testing.T) {
	plain, blocked := os.ErrPermission, error(&BlockedError{Blocks: []Block{{Reason: "r", Hint: "h"}}})
	for _, test := range []struct {
		err       error
		untouched bool
		want      int
	}{{plain, true, ExitBlocked}, {plain, false, ExitFailed}, {blocked, true, ExitBlocked}, {blocked, false, ExitFailed}} {
		got := refuse(t.Context(), test.untouched, test.err)
		if ExitCode(got) != test.want || !strings.Contains(got.Error(), test.err.Error()) {
			t.Errorf("%v, untouched %v: %v, exit %d", test.err, test.untouched, got, ExitCode(got))
		}
		if errors.Is(test.err, blocked) && len(Hints(got)) != 1 {
			t.Errorf("hints: %q", Hints(got))
		}
	}
}
