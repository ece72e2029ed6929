package steps

import (
	"context"
	"encoding/base64"
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/node-upgrader/node-upgrader/hostexec"
	"github.com/node-upgrader/node-upgrader/image"
)

func base64Of(data []byte) string { return base64.StdEncoding.EncodeToString(data) }

// A row is a node and a bundle, and what stands against the upgrade: one
// part of each reason.
func TestSkewRules(t *testing.T) {
	for name, tc := range map[string]struct {
		role                                                Role
		target, bundleKubeadm, bundleKubelet                string // "": all the target
		kubelet, node, apiServer, controlPlane, clusterIsAt string // "": unknown
		want                                                []string
	}{
		"one minor up":                  {target: "1.36.3", kubelet: "1.35.4", apiServer: "1.35.4", controlPlane: "1.35.4", clusterIsAt: "1.35.4"},
		"a patch up":                    {target: "1.36.3", kubelet: "1.36.1", apiServer: "1.36.1", controlPlane: "1.36.1", clusterIsAt: "1.36.1"},
		"there already":                 {target: "1.36.3", kubelet: "1.36.3", apiServer: "1.36.3", controlPlane: "1.36.3", clusterIsAt: "1.36.3"},
		"half-way":                      {target: "1.36.3", kubelet: "1.35.4", apiServer: "1.36.3", controlPlane: "1.36.3", clusterIsAt: "1.35.4"},
		"nothing known":                 {target: "1.36.3"},
		"two minors up":                 {target: "1.36.3", kubelet: "1.34.2", apiServer: "1.34.2", controlPlane: "1.34.2", clusterIsAt: "1.34.2", want: []string{"the control plane is at v1.34.2 and the bundle at v1.36.3, 2 minor"}},
		"two minors up, disk alone":     {target: "1.36.3", kubelet: "1.35.2", controlPlane: "1.34.2", want: []string{"v1.34.2"}},
		"a minor down":                  {target: "1.35.4", kubelet: "1.36.3", apiServer: "1.36.3", controlPlane: "1.36.3", clusterIsAt: "1.36.3", want: []string{"the cluster (ClusterConfiguration) is at v1.36.3", "this node's control plane is at v1.36.3", "the kubelet is at v1.36.3"}},
		"a patch down":                  {target: "1.36.1", kubelet: "1.36.3", controlPlane: "1.36.3", clusterIsAt: "1.36.3", want: []string{"ClusterConfiguration", "control plane", "kubelet"}},
		"others went further":           {target: "1.36.3", kubelet: "1.35.4", controlPlane: "1.35.4", apiServer: "1.36.4", clusterIsAt: "1.36.4", want: []string{"the cluster (ClusterConfiguration) is at v1.36.4, newer than the bundle's v1.36.3"}},
		"the kubelet alone is newer":    {target: "1.36.3", kubelet: "1.36.4", controlPlane: "1.36.3", clusterIsAt: "1.36.3", want: []string{"the kubelet is at v1.36.4, newer"}},
		"only the node tells":           {target: "1.36.3", node: "1.36.4", controlPlane: "1.35.4", want: []string{"the kubelet is at v1.36.4, newer"}},
		"kubelet three behind":          {target: "1.36.3", kubelet: "1.33.1", controlPlane: "1.35.4"},
		"kubelet four behind":           {target: "1.36.3", kubelet: "1.32.1", controlPlane: "1.35.4", want: []string{"the kubelet is at v1.32.1, 4 minor versions behind"}},
		"another major":                 {target: "2.0.0", kubelet: "1.36.3", controlPlane: "1.36.3", want: []string{"v2.0.0, 100 minor", "behind v2.0.0"}},
		"to a release candidate":        {target: "1.36.0-rc.1", kubelet: "1.35.4", controlPlane: "1.35.4"},
		"from release to its candidate": {target: "1.36.0-rc.1", kubelet: "1.36.0", controlPlane: "1.36.0", want: []string{"control plane is at v1.36.0", "kubelet is at v1.36.0"}},

		"worker after its control plane":    {role: Worker, target: "1.36.3", kubelet: "1.35.4", apiServer: "1.36.3", clusterIsAt: "1.36.3"},
		"worker ahead by a minor":           {role: Worker, target: "1.36.3", kubelet: "1.35.4", apiServer: "1.35.4", clusterIsAt: "1.35.4", want: []string{"the API server is at v1.35.4 and the bundle's kubelet at v1.36.3"}},
		"worker ahead by a patch":           {role: Worker, target: "1.36.3", kubelet: "1.36.1", apiServer: "1.36.1", want: []string{"may not be ahead"}},
		"worker behind a newer cluster":     {role: Worker, target: "1.36.3", kubelet: "1.35.4", apiServer: "1.37.1", clusterIsAt: "1.37.1", want: []string{"the cluster (ClusterConfiguration) is at v1.37.1, and the bundle's kubeadm v1.36.3 does not know"}},
		"worker behind a newer patch":       {role: Worker, target: "1.36.3", kubelet: "1.35.4", apiServer: "1.36.5", clusterIsAt: "1.36.5"},
		"worker, the cluster half-way up":   {role: Worker, target: "1.36.3", kubelet: "1.35.4", apiServer: "1.37.1", clusterIsAt: "1.36.3"},
		"worker leaps to its control plane": {role: Worker, target: "1.36.3", kubelet: "1.34.2", apiServer: "1.36.3", clusterIsAt: "1.36.3"},
		"worker, no API server":             {role: Worker, target: "1.36.3", kubelet: "1.35.4"},
		"worker down":                       {role: Worker, target: "1.35.4", kubelet: "1.36.3", apiServer: "1.36.3", want: []string{"the kubelet is at v1.36.3, newer than the bundle's v1.35.4"}},

		"kubeadm too old for the target": {target: "1.36.3", bundleKubeadm: "1.36.2", want: []string{"the bundle's kubeadm is v1.36.2"}},
		"kubeadm of another minor":       {target: "1.36.3", bundleKubeadm: "1.37.1", want: []string{"the bundle's kubeadm is v1.37.1"}},
		"kubelet ahead in the bundle":    {target: "1.36.3", bundleKubelet: "1.36.4", want: []string{"ahead of its control plane"}},
		"all at once": {
			target: "1.36.3", bundleKubeadm: "1.35.4", bundleKubelet: "1.37.0", kubelet: "1.30.0", controlPlane: "1.33.0",
			want: []string{"kubeadm is v1.35.4", "kubelet is v1.37.0", "the control plane is at v1.33.0", "the kubelet is at v1.30.0"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			parse := func(s, otherwise string) *version.Version {
				if s == "" {
					s = otherwise
				}
				if s == "" {
					return nil
				}
				return version.MustParseSemantic(s)
			}
			v := versions{
				role: tc.role, target: parse(tc.target, ""), bundleKubeadm: parse(tc.bundleKubeadm, tc.target), bundleKubelet: parse(tc.bundleKubelet, tc.target),
				kubelet: parse(tc.kubelet, ""), node: parse(tc.node, ""), apiServer: parse(tc.apiServer, ""),
				controlPlane: parse(tc.controlPlane, ""), cluster: parse(tc.clusterIsAt, ""),
			}
			if v.role == "" {
				v.role = ControlPlane
			}
			blocks := v.blocks()
			if len(blocks) != len(tc.want) {
				t.Fatalf("blocks %+v, want %q", blocks, tc.want)
			}
			for i, b := range blocks {
				if !strings.Contains(b.Reason, tc.want[i]) || b.Hint == "" {
					t.Errorf("block %+v, want %q and a hint", b, tc.want[i])
				}
			}
		})
	}
}

func TestSkewFinds(t *testing.T) {
	down := &url.Error{Op: "Get", URL: "https://127.0.0.1:6443/version", Err: errors.New("connection refused")}
	for name, tc := range map[string]struct {
		node   []nodeOption
		before func(*kubeadmNode)
		want   []Fact
		blocks []string
	}{
		"control plane": {
			want: []Fact{
				{"kubeadm", oldVersion, newVersion},
				{"kubelet", oldVersion, newVersion},
				{"control plane", oldVersion, newVersion},
				{"API server", oldVersion, newVersion},
				{"cluster", oldVersion, newVersion},
				{"node", oldVersion, newVersion},
			},
		},
		"worker ahead of its control plane": {
			node: []nodeOption{worker, apiServerAt(oldVersion), clusterAt(oldVersion)},
			want: []Fact{
				{"kubeadm", oldVersion, newVersion},
				{"kubelet", oldVersion, newVersion},
				{"API server", oldVersion, ""},
				{"cluster", oldVersion, ""},
				{"node", oldVersion, newVersion},
			},
			blocks: []string{"the API server is at v1.35.4"},
		},
		"no API server": {
			before: func(n *kubeadmNode) { n.apiDown = down },
			want: []Fact{
				{"kubeadm", oldVersion, newVersion},
				{"kubelet", oldVersion, newVersion},
				{"control plane", oldVersion, newVersion},
				{"API server", "unknown: reach the API server: not after 10s: " + down.Error(), newVersion},
			},
		},
		"no tools, no unit, no manifest": {
			node: []nodeOption{clusterAt("v1.34.2")},
			before: func(n *kubeadmNode) {
				n.remove("/usr/bin/kubeadm")
				n.remove(manifestPath(kubeAPIServer))
				n.commands.On("kubelet --version", func(hostexec.Command) (string, error) { return "", errors.New("crashed") })
			},
			want: []Fact{
				{"kubeadm", "unknown: no kubeadm in /usr/local/sbin, /usr/local/bin, /usr/sbin, /usr/bin", newVersion},
				{"kubelet", "unknown: /usr/bin/kubelet --version: exit status 1\ncrashed", newVersion},
				{"control plane", "unknown: open /etc/kubernetes/manifests/kube-apiserver.yaml: no such file or directory", newVersion},
				{"API server", oldVersion, newVersion},
				{"cluster", "v1.34.2", newVersion},
				{"node", oldVersion, newVersion},
			},
			blocks: []string{"v1.34.2"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newKubeadmNode(t, tc.node...)
			if tc.before != nil {
				tc.before(n)
			}
			before := n.tree()
			blocks, facts, err := Skew(t.Context(), n.env)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, facts); diff != "" {
				t.Errorf("facts (-want +got):\n%s", diff)
			}
			if len(blocks) != len(tc.blocks) {
				t.Fatalf("blocks %+v, want %q", blocks, tc.blocks)
			}
			for i, b := range blocks {
				if !strings.Contains(b.Reason, tc.blocks[i]) {
					t.Errorf("block %q, want %q", b.Reason, tc.blocks[i])
				}
			}
			if diff := cmp.Diff(before, n.tree()); diff != "" {
				t.Errorf("the node was changed:\n%s", diff)
			}
		})
	}
}

func TestSkewOfABadBundle(t *testing.T) {
	n := newKubeadmNode(t)
	n.env.Bundle.Manifest.Components = []image.Component{{Name: image.Kubeadm, Version: "newest"}}
	if _, _, err := Skew(t.Context(), n.env); err == nil || !strings.Contains(err.Error(), "kubeadm in the bundle") {
		t.Errorf("error %v", err)
	}
}

// A worker whose API server was away when versions were compared is refused
// when it answers, before anything has changed.
func TestSkewAskedAgain(t *testing.T) {
	for name, tc := range map[string]struct {
		node []nodeOption
		want string
	}{
		"the control plane is older": {[]nodeOption{worker, apiServerAt(oldVersion), clusterAt(oldVersion)}, "the API server is at v1.35.4"},
		"the cluster is newer":       {[]nodeOption{worker, apiServerAt("v1.37.1"), clusterAt("v1.37.1")}, "does not know the configuration"},
		"the cluster is unknown":     {[]nodeOption{worker, clusterAt("?")}, "cannot be told"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newKubeadmNode(t, tc.node...)
			n.apiDown = &url.Error{Op: "Get", Err: errors.New("connection refused")}
			if blocks, _, err := Skew(t.Context(), n.env); err != nil || len(blocks) > 0 {
				t.Fatalf("blocks %+v, error %v", blocks, err)
			}
			sleep := n.env.Clock.Sleep
			n.env.Clock.Sleep = func(ctx context.Context, d time.Duration) error {
				n.apiDown = nil
				return sleep(ctx, d)
			}
			before := n.tree()
			err := n.run()
			if err == nil || ExitCode(err) != ExitBlocked || !strings.Contains(err.Error(), tc.want) || len(Hints(err)) == 0 {
				t.Errorf("error %v (exit code %d), want %q", err, ExitCode(err), tc.want)
			}
			if diff := cmp.Diff(before, n.tree()); diff != "" {
				t.Errorf("the node was changed (-before +after):\n%s", diff)
			}
		})
	}
}
