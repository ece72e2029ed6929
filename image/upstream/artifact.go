package upstream

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/node-upgrader/node-upgrader/image"
)

// Artifact is one file of a project's release.
type Artifact struct {
	Component    string
	Version      string
	Architecture string
	URL          string
	Checksums    string // address of the text with its sha256
}

// Components are what a bundle is made of, sorted.
func Components() []string {
	return []string{image.CNIPlugins, image.Containerd, image.Kubeadm, image.Kubectl, image.Kubelet, image.Runc}
}

// versionSyntax is that of a release; it is a part of addresses.
var versionSyntax = regexp.MustCompile(`^v[0-9]{1,9}\.[0-9]{1,9}\.[0-9]{1,9}(-(alpha|beta|rc)\.[0-9]{1,9})?$`)

func notReleased(component, version string) error {
	return fmt.Errorf("version %q of %s is not one of a release, like v1.2.3", version, component)
}

// newArtifact says where a component's release is.
//
//   - Kubernetes: https://kubernetes.io/releases/download/#binaries
//   - containerd: static-release in its Makefile; the archives without "static"
//     in their name want the C library of the machine that they were built on
//   - runc: script/release_build.sh
//   - CNI plugins: scripts/release.sh
func newArtifact(component, version, arch string) (Artifact, error) {
	if !versionSyntax.MatchString(version) {
		return Artifact{}, notReleased(component, version)
	}
	if !slices.Contains(image.Architectures(), arch) {
		return Artifact{}, fmt.Errorf("architecture %q is not known (%s)", arch, strings.Join(image.Architectures(), ", "))
	}
	a := Artifact{Component: component, Version: version, Architecture: arch}
	switch component {
	case image.Kubeadm, image.Kubelet, image.Kubectl:
		a.URL = fmt.Sprintf("https://dl.k8s.io/release/%s/bin/linux/%s/%s", version, arch, component)
		a.Checksums = a.URL + ".sha256"
	case image.Containerd:
		a.URL = fmt.Sprintf("https://github.com/containerd/containerd/releases/download/%s/containerd-static-%s-linux-%s.tar.gz",
			version, strings.TrimPrefix(version, "v"), arch)
		a.Checksums = a.URL + ".sha256sum"
	case image.Runc:
		dir := "https://github.com/opencontainers/runc/releases/download/" + version
		a.URL, a.Checksums = dir+"/runc."+arch, dir+"/runc.sha256sum"
	case image.CNIPlugins:
		a.URL = fmt.Sprintf("https://github.com/containernetworking/plugins/releases/download/%s/cni-plugins-linux-%s-%s.tgz",
			version, arch, version)
		a.Checksums = a.URL + ".sha256"
	default:
		return Artifact{}, fmt.Errorf("%q is not a component", component)
	}
	return a, nil
}
