//go:build e2e

package e2e

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/node-upgrader/node-upgrader/test/figures"
	"github.com/node-upgrader/node-upgrader/test/host"
	"github.com/node-upgrader/node-upgrader/test/payload"
)

// A node that has none of the target's images, and no registry that answers. The
// bundle without images is refused before anything is touched; that with images
// upgrades the node, and nothing is pulled. Its import is cut short first.
func TestImagesOfTheBundle(t *testing.T) {
	t.Parallel()
	p := load(t)
	with, err := p.WithImages(t.Context(), t.TempDir())
	must(t, err)
	c, client := up(t, 0)
	cp := c.ControlPlane
	must(t, p.CopyTo(cp))
	upgraderWith, err := with.CopyBesides(cp, "/root/with-images")
	must(t, err)
	if have := present(t, cp, p.Target.ImageNames); len(have) > 0 {
		t.Fatalf("the node has %v already", have)
	}

	before, pods := state(t, cp), containers(t, client, cp.Name())
	code, plan, stderr := upgrader(t, cp, payload.NodeUpgrader, nil, "plan")
	if code != 0 || !strings.Contains(plan, "~ pull registry.k8s.io/kube-apiserver:v"+p.Target.Set.Kubernetes) {
		t.Errorf("plan: exit %d\n%s%s", code, plan, stderr)
	}
	code, _, stderr = upgrader(t, cp, payload.NodeUpgrader, nil, "run", "--ignore-preflight-errors=SystemVerification")
	t.Logf("without images: exit %d\n%s", code, stderr)
	for _, want := range []string{"is not on this node and cannot be pulled", "registry.k8s.io/kube-apiserver:v" + p.Target.Set.Kubernetes, "upgrader bundle build --images", "ctr -n k8s.io images import"} {
		if code != 3 || !strings.Contains(stderr, want) {
			t.Errorf("exit code %d, want 3, and the message says %q: %v", code, want, strings.Contains(stderr, want))
		}
	}
	if diff := cmp.Diff(before, state(t, cp)); diff != "" {
		t.Errorf("a refused upgrade changed the node:\n%s", diff)
	}
	if diff := cmp.Diff(pods, containers(t, client, cp.Name())); diff != "" {
		t.Errorf("a refused upgrade touched containers:\n%s", diff)
	}

	pulls := func() int {
		return strings.Count(sh(t, cp, "journalctl", "-u", "containerd", "--no-pager", "-o", "cat"), "msg=\"PullImage ")
	}
	pulled := pulls()
	if pulled == 0 {
		t.Error("the journal has no pull: then it is no proof either")
	}
	// Images alone, as before the first node of a cluster: killed in the middle,
	// the next call goes on with the rest.
	cut := sh(t, cp, "sh", "-c", upgraderWith+` copy --images-only >/tmp/cut 2>&1 & pid=$!
until [ "$(ctr -n k8s.io images ls -q | grep -c v`+p.Target.Set.Kubernetes+`)" -ge 1 ]; do kill -0 $pid || break; done; kill -KILL $pid; wait $pid; cat /tmp/cut`)
	half := present(t, cp, p.Target.ImageNames)
	t.Logf("killed with %v on the node:\n%s", half, cut)
	if len(half) == 0 || len(half) == len(p.Target.ImageNames) {
		t.Errorf("the import was not cut short: %v", half)
	}
	if diff := cmp.Diff(before, state(t, cp)); diff != "" {
		t.Errorf("to bring images changed the node:\n%s", diff)
	}
	code, _, stderr = upgrader(t, cp, upgraderWith, nil, "run", "--ignore-preflight-errors=SystemVerification", "-o", "json")
	t.Logf("with images: exit %d\n%s", code, stderr)
	if code != 0 {
		t.Fatalf("exit %d", code)
	}
	must(t, c.Wait(t.Context()))
	atTarget(t, cp, client, p.Target.Set, true)
	allRunning(t, client)
	if now := pulls(); now != pulled {
		t.Errorf("%d images were pulled", now-pulled)
	}
	if diff := cmp.Diff(sorted(p.Target.ImageNames), pinned(t, cp, p.Target.ImageNames, with.Digest)); diff != "" {
		t.Errorf("pinned (-want +got):\n%s", diff)
	}
	again(t, cp, upgraderWith)
	record(t, figures.AtMost("images_pulled", float64(pulls()-pulled), "images", 0))
}

func sorted(names []string) []string {
	return slices.Sorted(slices.Values(names))
}

// present are those of the images that the node's containerd has.
func present(t *testing.T, m host.Machine, names []string) []string {
	t.Helper()
	have := strings.Fields(sh(t, m, "ctr", "-n", "k8s.io", "images", "ls", "-q"))
	return slices.DeleteFunc(sorted(names), func(n string) bool { return !slices.Contains(have, n) })
}

// pinned are those that are pinned for the bundle.
func pinned(t *testing.T, m host.Machine, names []string, bundle string) []string {
	t.Helper()
	have := strings.Fields(sh(t, m, "ctr", "-n", "k8s.io", "images", "ls", "-q",
		`labels."io.cri-containerd.pinned"==pinned,labels."io.github.node-upgrader.pinned-by"=="`+bundle+`"`))
	return slices.DeleteFunc(sorted(names), func(n string) bool { return !slices.Contains(have, n) })
}
