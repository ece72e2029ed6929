package steps

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/kubernetes"

	"github.com/node-upgrader/node-upgrader/hostexec"
	"github.com/node-upgrader/node-upgrader/steps/cri"
	"github.com/node-upgrader/node-upgrader/steps/cri/critest"
)

// A worker gets what may run on it, under the names that its cluster asks for,
// and containerd's own sandbox image; the rest of the bundle stays where it is.
func TestCopyImportsWhatTheNodeNeeds(t *testing.T) {
	all := []string{"registry.k8s.io/kube-apiserver:v1.36.3", "registry.k8s.io/kube-proxy:v1.36.3", "registry.k8s.io/coredns/coredns:v1.14.2", "registry.k8s.io/pause:3.10.2", "registry.k8s.io/etcd:3.6.8-0"}
	for repository, want := range map[string][]string{
		"registry.k8s.io": {"registry.k8s.io/coredns/coredns:v1.14.2", "registry.k8s.io/kube-proxy:v1.36.3", "registry.k8s.io/pause:3.10.2"},
		"r.example/k8s":   {"r.example/k8s/coredns:v1.14.2", "r.example/k8s/kube-proxy:v1.36.3", "registry.k8s.io/pause:3.10.2"},
	} {
		n := newImagesNode(t, repository, all...)
		n.runtime.Change(func(s *critest.State) {
			s.Importing = func(i cri.Import) error {
				if i.Bundle.Dir == n.env.Bundle.Dir {
					t.Errorf("%s is not imported from the stage", i.Name)
				}
				return nil
			}
		})
		state, err := n.copies()
		if err != nil {
			t.Fatal(err)
		}
		stored := n.stored()
		if diff := cmp.Diff(want, slices.Sorted(maps.Keys(stored))); diff != "" {
			t.Errorf("%s: %s", repository, diff)
		}
		for name, i := range stored {
			if !i.Ready || !i.Pinned || i.PinnedBy != n.env.Bundle.Digest {
				t.Errorf("%s: %+v", name, i)
			}
			if !slices.Contains(state.Changes, Change{"import", name}) {
				t.Errorf("the plan does not tell of %s: %v", name, state.Changes)
			}
		}
		n.effects = nil
		if state, err = n.copies(); err != nil || state.Phase != Done || len(n.effects) > 0 {
			t.Errorf("the second time: %+v %v %v", state, err, n.effects)
		}
	}
}

// Killed in the middle, the next call brings the rest.
func TestCopyGoesOnWithTheImages(t *testing.T) {
	n := newImagesNode(t, "registry.k8s.io", "registry.k8s.io/kube-proxy:v1.36.3", "registry.k8s.io/coredns/coredns:v1.14.2", "registry.k8s.io/pause:3.10.2")
	killed := errors.New("killed")
	n.runtime.Change(func(s *critest.State) {
		s.Importing = func(i cri.Import) error {
			if strings.Contains(i.Name, "kube-proxy") {
				return killed
			}
			return nil
		}
	})
	if _, err := n.copies(); !errors.Is(err, killed) {
		t.Fatal(err)
	}
	if have := n.stored(); len(have) != 1 {
		t.Fatalf("%v", have)
	}
	// It was left in containerd's store without its layers.
	n.runtime.Change(func(s *critest.State) {
		s.Importing = nil
		s.Stored = maps.Clone(s.Stored)
		s.Stored["registry.k8s.io/kube-proxy:v1.36.3"] = cri.Image{ID: "sha256:other"}
	})
	n.effects = nil
	if _, err := n.copies(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"import-image registry.k8s.io/kube-proxy:v1.36.3", "import-image registry.k8s.io/pause:3.10.2"}, n.effects); diff != "" {
		t.Error(diff)
	}
	if state, err := checkCopy(t.Context(), n.env); err != nil || state.Phase != Done {
		t.Errorf("%+v %v", state, err)
	}
}

// Without images in the bundle containerd pulls them, and what it cannot pull is
// refused before anything is staged.
func TestCopyPulls(t *testing.T) {
	n := newImagesNode(t, "r.example/k8s")
	n.env.Node.Role = ControlPlane
	there := "r.example/k8s/coredns:v1.14.2"
	n.runtime.Change(func(s *critest.State) {
		s.Registry = map[string]string{there: "sha256:c"}
		for _, name := range []string{"kube-apiserver:v1.36.3", "etcd:3.6.8-0", "pause:3.10.2"} {
			s.Registry["r.example/k8s/"+name] = "sha256:" + name
		}
	})
	state, err := n.copies()
	var blocked *BlockedError
	if !errors.As(err, &blocked) || ExitCode(err) != ExitBlocked || !slices.Contains(state.Changes, Change{"pull", there}) {
		t.Fatalf("%v %+v", err, state)
	}
	for _, want := range []string{"image r.example/k8s/kube-proxy:v1.36.3 is not on this node and cannot be pulled", "no registry answers", "not on this node either: r.example/k8s/pause:3.10.2, registry.k8s.io/pause:3.10.2"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	for _, want := range []string{"bundle build --images", "ctr -n k8s.io images import", "crictl pull r.example/k8s/kube-proxy"} {
		if !strings.Contains(strings.Join(Hints(err), " "), want) {
			t.Errorf("%v, want %q", Hints(err), want)
		}
	}
	if there, err := n.env.Host.FS.Exists(Store); err != nil || there {
		t.Errorf("something was staged: %v %v", there, err)
	}
	n.runtime.Change(func(s *critest.State) {
		s.Registry["r.example/k8s/kube-proxy:v1.36.3"] = "sha256:p"
		s.Images = map[string]string{"registry.k8s.io/pause:3.10.2": "sha256:3"}
	})
	if _, err := n.copies(); err != nil {
		t.Fatal(err)
	}
	for name, i := range n.stored() {
		if i.PinnedBy != n.env.Bundle.Digest {
			t.Errorf("%s: %+v", name, i)
		}
	}
	if state, err := checkCopy(t.Context(), n.env); err != nil || state.Phase != Done {
		t.Errorf("%+v %v", state, err)
	}
}

// Another image with the name of the bundle's may be what something else on the
// node needs: it stays, and somebody has to decide.
func TestCopyRefusesAnotherImageOfTheName(t *testing.T) {
	n := newImagesNode(t, "registry.k8s.io", "registry.k8s.io/pause:3.10.2")
	n.runtime.Change(func(s *critest.State) {
		s.Images = map[string]string{"registry.k8s.io/pause:3.10.2": "sha256:other"}
	})
	state, err := checkCopy(t.Context(), n.env)
	if err != nil || state.Phase != Blocked || len(state.Blocks) != 1 || !strings.Contains(state.Blocks[0].Reason, "registry.k8s.io/pause:3.10.2 is on this node as sha256:other") ||
		!strings.Contains(state.Blocks[0].Hint, "ctr -n k8s.io images rm registry.k8s.io/pause:3.10.2") {
		t.Errorf("%+v %v", state, err)
	}
	// The same image in another form: only its id counts.
	id, err := imageNamed(t, "registry.k8s.io/pause:3.10.2").ConfigName()
	n.must(err)
	n.runtime.Change(func(s *critest.State) { s.Images = map[string]string{"registry.k8s.io/pause:3.10.2": id.String()} })
	if state, err := checkCopy(t.Context(), n.env); err != nil || state.Phase == Blocked {
		t.Errorf("%+v %v", state, err)
	}
}

// A containerd that is down does not keep the bundle from being staged: its step
// replaces it, and kubeadm's looks for the images again.
func TestCopyWithoutContainerd(t *testing.T) {
	n := newImagesNode(t, "registry.k8s.io", "registry.k8s.io/pause:3.10.2")
	n.runtime.Change(func(s *critest.State) { s.Version = "" })
	if _, err := n.copies(); err != nil {
		t.Fatal(err)
	}
	if state, err := checkCopy(t.Context(), n.env); err != nil || state.Phase != Done || !strings.Contains(fmt.Sprint(state.Facts), "cannot be told") {
		t.Errorf("%+v %v", state, err)
	}
}

// Without the API server the names are those of the control plane here, or the
// default ones.
func TestImageNamesWithoutTheAPIServer(t *testing.T) {
	n := newImagesNode(t, "r.example/k8s", "registry.k8s.io/pause:3.10.2")
	n.env.Kube = func(context.Context) (kubernetes.Interface, error) { return nil, errors.New("connection refused") }
	l, err := lookImages(t.Context(), n.env)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, need := range l.needs {
		names = append(names, need.name)
	}
	if diff := cmp.Diff([]string{"registry.k8s.io/coredns/coredns:v1.14.2", "registry.k8s.io/kube-proxy:v1.36.3", "registry.k8s.io/pause:3.10.2"}, names); diff != "" {
		t.Error(diff)
	}
	n.write("/etc/kubernetes/manifests/kube-apiserver.yaml", "kind: Pod\nspec: {containers: [{name: kube-apiserver, image: 'r.example/k8s/kube-apiserver:v1.35.4'}]}\n", 0o600)
	if _, args := imagesConfig(t.Context(), n.env); !slices.Equal(args, []string{"--kubernetes-version", "v1.36.3", "--image-repository", "r.example/k8s"}) {
		t.Errorf("%q", args)
	}
}

// A kubeadm that does not run is found before anything is touched.
func TestKubeadmThatDoesNotTellItsImages(t *testing.T) {
	n := newImagesNode(t, "registry.k8s.io")
	n.commands.On("kubeadm config images list --config /dev/stdin", func(hostexec.Command) (string, error) { return "", errors.New("exec format error") })
	if state, err := checkCopy(t.Context(), n.env); err != nil || state.Phase != Blocked || !strings.Contains(fmt.Sprint(state.Blocks), "exec format error") {
		t.Errorf("%+v %v", state, err)
	}
}

// The pins of bundles that no run is of any more end; those of others, and of
// somebody else, stay.
func TestReleaseImages(t *testing.T) {
	n := newImagesNode(t, "registry.k8s.io")
	n.runtime.Change(func(s *critest.State) {
		s.Stored = map[string]cri.Image{
			"old:1": {Ready: true, Pinned: true, PinnedBy: "sha256:old"}, "now:1": {Ready: true, Pinned: true, PinnedBy: "sha256:now"}, "his:1": {Ready: true, Pinned: true},
		}
	})
	for range 2 {
		n.must(releaseImages(t.Context(), n.env, map[string]bool{bundleDir("sha256:now"): true}))
	}
	for name, want := range map[string]bool{"old:1": false, "now:1": true, "his:1": true} {
		if got := n.stored()[name].Pinned; got != want {
			t.Errorf("%s: pinned %v", name, got)
		}
	}
	if diff := cmp.Diff([]string{"unpin-image old:1"}, n.effects); diff != "" {
		t.Error(diff)
	}
}

// On any node, before an upgrade could start there, and of nothing but images.
func TestBringImages(t *testing.T) {
	n := newImagesNode(t, "r.example/k8s", "registry.k8s.io/kube-proxy:v1.36.3", "registry.k8s.io/coredns/coredns:v1.14.2")
	r := Runner{Env: n.env}
	if _, err := r.BringImages(t.Context()); ExitCode(err) != ExitBlocked || !strings.Contains(err.Error(), "registry.k8s.io/pause:3.10.2") || len(n.stored()) > 0 {
		t.Fatalf("an image that nobody has: %v %v", err, n.stored())
	}
	n.runtime.Change(func(s *critest.State) { s.Registry = map[string]string{"registry.k8s.io/pause:3.10.2": "sha256:3"} })
	for _, want := range []string{"done", "unchanged"} {
		results, err := r.BringImages(t.Context())
		if err != nil || len(results) != 1 || results[0].Result != want {
			t.Errorf("%+v %v", results, err)
		}
	}
	if have := slices.Sorted(maps.Keys(n.stored())); len(have) != 3 {
		t.Errorf("%v", have)
	}
	if there, err := n.env.Host.FS.Exists(StateDir); err != nil || there {
		t.Errorf("something was staged: %v %v", there, err)
	}
	n.runtime.Change(func(s *critest.State) { s.Version = "" })
	if _, err := r.BringImages(t.Context()); err == nil || !strings.Contains(err.Error(), "cannot be told") {
		t.Errorf("%v", err)
	}
}
