package steps

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/node-upgrader/node-upgrader/steps/cri/critest"
)

func TestKubeadmCheck(t *testing.T) {
	for name, tc := range map[string]struct {
		node   []nodeOption
		before func(*kubeadmNode)
		want   Phase
		unmet  string
	}{
		"upgraded by somebody else, by another build of kubeadm": {
			node: []nodeOption{atTarget, clusterAt(newVersion)}, want: Needed, unmet: "kubeadm is another",
		},
		"upgraded by somebody else": {
			node:   []nodeOption{atTarget, clusterAt(newVersion)},
			before: func(n *kubeadmNode) { n.write("/usr/bin/kubeadm", "new kubeadm", 0o755) }, want: Done,
		},
		"an image of a builder's": {
			node: []nodeOption{atTarget, clusterAt(newVersion)},
			before: func(n *kubeadmNode) {
				n.write("/usr/bin/kubeadm", "new kubeadm", 0o755)
				ref := "registry.example:5000/kube-scheduler:v1.36.3-eks.1"
				n.write(manifestPath(kubeScheduler), strings.ReplaceAll(n.read(manifestPath(kubeScheduler)), imageOf(kubeScheduler, newVersion), ref), 0o600)
				n.runtime.Change(func(s *critest.State) { s.Images[ref] = imageID(imageOf(kubeScheduler, newVersion)) })
			},
			want: Done,
		},
		"the old scheduler still runs": {
			node:   []nodeOption{atTarget, clusterAt(newVersion)},
			before: func(n *kubeadmNode) { n.runAs(kubeScheduler, oldVersion) }, want: Needed, unmet: "kube-scheduler runs is",
		},
		"the controller manager is ill": {
			node:   []nodeOption{atTarget, clusterAt(newVersion)},
			before: func(n *kubeadmNode) { n.ill["6443"] = errors.New("status 500") }, want: Needed, unmet: "is status 500, not ok",
		},
		"a worker without a record": {node: []nodeOption{worker}, want: Needed, unmet: "kubeadm upgrade node is not finished"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newKubeadmNode(t, tc.node...)
			if tc.before != nil {
				tc.before(n)
			}
			s := n.check(tc.want)
			if got := unmet(s); !strings.Contains(got, tc.unmet) {
				t.Errorf("unmet: %s, want %s", got, tc.unmet)
			}
		})
	}
}

// Where everything is at the target but for the program, only that is put in.
func TestKubeadmOnlyInstalls(t *testing.T) {
	n := newKubeadmNode(t, atTarget, clusterAt(newVersion))
	s := n.check(Needed)
	if diff := cmp.Diff([]Change{{"replace", "/usr/bin/kubeadm"}}, s.Changes); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
	if err := n.run(); err != nil {
		t.Fatal(err)
	}
	if ran := n.ranUpgrades(); len(ran) > 0 {
		t.Errorf("was run: %q", ran)
	}
	n.check(Done)
}

// A worker's record counts as long as the kubelet's files are those that
// kubeadm left: kubeadm does not fsync them.
func TestKubeadmRecordFits(t *testing.T) {
	n := newKubeadmNode(t, worker)
	n.upgrades("kubeadm upgrade node")
	if err := n.run(); err != nil {
		t.Fatal(err)
	}
	n.check(Done)
	n.write(kubeletConfig, kubeletConfigAt(oldVersion), 0o644)
	n.check(Needed)
	if err := n.run(); err != nil {
		t.Fatal(err)
	}
	n.check(Done)
	n.write(upgradedFile, "{", 0o600)
	n.check(Needed)
}

func TestKubeadmPlan(t *testing.T) {
	n := newKubeadmNode(t)
	s := n.check(Needed)
	want := []Change{
		{"add", "/var/lib/upgrader/runs/test/etcd-snapshot.db"},
		{"replace", "/usr/bin/kubeadm"},
		{"run", "/usr/bin/kubeadm upgrade apply v1.36.3 --yes"},
		{"replace", manifestPath(etcdName)},
		{"replace", manifestPath(kubeAPIServer)},
		{"replace", manifestPath(kubeControllerManager)},
		{"replace", manifestPath(kubeScheduler)},
		{"replace", kubeletConfig},
	}
	if diff := cmp.Diff(want, s.Changes); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
}

// kubeadm goes to where the host has one, through links, else to the bundle's
// place.
func TestKubeadmPlace(t *testing.T) {
	n := newKubeadmNode(t, worker)
	n.remove("/usr/bin/kubeadm")
	if s := n.check(Needed); s.Changes[0].Object != "/opt/bundle/kubeadm" {
		t.Errorf("changes: %v", s.Changes)
	}
	n.write("/opt/bin/kubeadm-v1.35.4", "old kubeadm", 0o755)
	if err := os.MkdirAll(n.path("/usr/local/bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/opt/bin/kubeadm-v1.35.4", n.path("/usr/local/bin/kubeadm")); err != nil {
		t.Fatal(err)
	}
	n.commands.Say("kubeadm upgrade node", "")
	if err := n.run(); err != nil {
		t.Fatal(err)
	}
	if got := n.read("/opt/bin/kubeadm-v1.35.4"); got != "new kubeadm" {
		t.Errorf("the link's target: %s", got)
	}
}

// An API server that has just started refuses what it allows a moment later.
func TestKubeadmWaitsForRights(t *testing.T) {
	n := newKubeadmNode(t)
	n.apiDown = apierrors.NewForbidden(schema.GroupResource{}, "", errors.New("cannot get path /readyz"))
	sleep := n.env.Clock.Sleep
	n.env.Clock.Sleep = func(ctx context.Context, d time.Duration) error {
		n.apiDown = nil
		return sleep(ctx, d)
	}
	n.upgrades("kubeadm upgrade apply v1.36.3 --yes")
	if err := n.run(); err != nil {
		t.Fatal(err)
	}
	n.check(Done)
}
