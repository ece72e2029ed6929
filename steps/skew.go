package steps

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"

	"github.com/node-upgrader/node-upgrader/image"
)

// kubeletBehind is how many minor versions a kubelet may be behind the API
// server (https://kubernetes.io/releases/version-skew-policy/).
const kubeletBehind = 3

// versions are those that an upgrade to target depends on; nil where one could
// not be told.
type versions struct {
	role Role

	target        *version.Version // what the cluster shall be
	bundleKubeadm *version.Version
	bundleKubelet *version.Version

	kubeadm      *version.Version // on disk
	kubelet      *version.Version // on disk
	node         *version.Version // the kubelet that reported last
	apiServer    *version.Version // as it answers
	controlPlane *version.Version // of this node, by its manifest
	cluster      *version.Version // ClusterConfiguration
}

// Skew compares the versions on the node and in the cluster with the bundle's
// and returns every reason that there is against this upgrade, and what was
// found. It works without an API server as far as the disk tells; a fact says
// what could not be asked. An error means that the bundle's own versions make
// no sense.
func Skew(ctx context.Context, env Env) ([]Block, []Fact, error) {
	v, facts, err := findVersions(ctx, env)
	if err != nil {
		return nil, facts, fmt.Errorf("compare versions: %w", err)
	}
	return v.blocks(), facts, nil
}

// blocks are all the reasons, each with the versions that it is about.
func (v versions) blocks() []Block {
	blocks := v.bundleBlocks()
	add := func(hint, reason string, args ...any) {
		blocks = append(blocks, Block{Reason: fmt.Sprintf(reason, args...), Hint: hint})
	}
	if oldest := oldest(v.controlPlane, v.apiServer, v.cluster); oldest != nil && v.role == ControlPlane {
		if n := minors(oldest, v.target); n > 1 {
			add(fmt.Sprintf("upgrade to v%s first", oldest.AddMinor(1).WithPatch(0).String()),
				"the control plane is at v%s and the bundle at v%s, %d minor versions up: kubeadm goes up one at a time", oldest, v.target, n)
		}
	}
	down := "use a bundle of this version or a newer one; Kubernetes does not support going back"
	for _, have := range []struct {
		what string
		at   *version.Version
	}{{"the cluster (ClusterConfiguration)", v.cluster}, {"this node's control plane", v.controlPlane}} {
		if have.at != nil && v.role == ControlPlane && v.target.LessThan(have.at) {
			add(down, "%s is at v%s, newer than the bundle's v%s", have.what, have.at, v.target)
		}
	}
	kubelet := v.kubelet
	if kubelet == nil {
		kubelet = v.node
	}
	switch {
	case kubelet == nil:
	case v.bundleKubelet.LessThan(kubelet):
		add(down, "the kubelet is at v%s, newer than the bundle's v%s", kubelet, v.bundleKubelet)
	case minors(kubelet, v.target) > kubeletBehind:
		add(fmt.Sprintf("upgrade this node's kubelet to v%d.%d first", v.target.Major(), v.target.Minor()-kubeletBehind),
			"the kubelet is at v%s, %d minor versions behind v%s: %d are supported", kubelet, minors(kubelet, v.target), v.target, kubeletBehind)
	}
	if v.role == Worker && v.apiServer != nil && v.apiServer.LessThan(v.bundleKubelet) {
		add("upgrade the control plane first",
			"the API server is at v%s and the bundle's kubelet at v%s: a kubelet may not be ahead of its API server", v.apiServer, v.bundleKubelet)
	}
	if v.role == Worker && v.cluster != nil && minors(v.bundleKubeadm, v.cluster) > 0 {
		add("use a bundle of the cluster's minor version",
			"the cluster (ClusterConfiguration) is at v%s, and the bundle's kubeadm v%s does not know the configuration of its kubelets", v.cluster, v.bundleKubeadm)
	}
	return blocks
}

// againstCluster is asked where the API server answers and something is about
// to change: an earlier Skew may not have reached it. A worker's upgrade
// depends on what only the API server tells.
func againstCluster(ctx context.Context, env Env) ([]Block, error) {
	v, facts, err := findVersions(ctx, env)
	if err != nil {
		return nil, fmt.Errorf("compare versions: %w", err)
	}
	if v.role == Worker && (v.apiServer == nil || v.cluster == nil) {
		return nil, &HintError{
			Err:  fmt.Errorf("compare versions: those of the cluster cannot be told: %s", unknown(facts)),
			Hint: "kubectl --kubeconfig " + kubeletConf + " -n kube-system get configmap kubeadm-config",
		}
	}
	return v.blocks(), nil
}

// bundleBlocks are the reasons that the bundle alone gives.
func (v versions) bundleBlocks() []Block {
	var blocks []Block
	if v.bundleKubeadm.LessThan(v.target) || minors(v.target, v.bundleKubeadm) != 0 {
		blocks = append(blocks, Block{
			Reason: fmt.Sprintf("the bundle's kubeadm is v%s: it cannot upgrade to v%s", v.bundleKubeadm, v.target),
			Hint:   "build the bundle with kubeadm v" + v.target.String(),
		})
	}
	if v.target.LessThan(v.bundleKubelet) {
		blocks = append(blocks, Block{
			Reason: fmt.Sprintf("the bundle's kubelet is v%s, ahead of its control plane v%s", v.bundleKubelet, v.target),
			Hint:   "build the bundle with kubelet v" + v.target.String(),
		})
	}
	return blocks
}

// minors is how many minor versions to is above from; 0 or less where it is
// not above. Another major version is far away.
func minors(from, to *version.Version) int {
	if from.Major() != to.Major() {
		return 100 * (int(to.Major()) - int(from.Major())) //nolint:gosec // small numbers
	}
	return int(to.Minor()) - int(from.Minor()) //nolint:gosec // small numbers
}

func oldest(all ...*version.Version) *version.Version {
	var min *version.Version
	for _, v := range all {
		if v != nil && (min == nil || v.LessThan(min)) {
			min = v
		}
	}
	return min
}

// bundleVersions are the versions that the bundle itself says.
func bundleVersions(b *image.Bundle) (v versions, err error) {
	for _, part := range []struct {
		name, version string
		to            **version.Version
	}{
		{"kubernetesVersion", b.Manifest.KubernetesVersion, &v.target},
		{image.Kubeadm, b.Version(image.Kubeadm), &v.bundleKubeadm},
		{image.Kubelet, b.Version(image.Kubelet), &v.bundleKubelet},
	} {
		if *part.to, err = version.ParseSemantic(part.version); err != nil {
			return v, fmt.Errorf("%s in the bundle: %w", part.name, err)
		}
	}
	return v, nil
}

// unknown are the facts that could not be told, in words.
func unknown(facts []Fact) string {
	var parts []string
	for _, f := range facts {
		if strings.HasPrefix(f.Have, "unknown: ") {
			parts = append(parts, f.Name+" is "+f.Have)
		}
	}
	return strings.Join(parts, ", ")
}
