// Package components makes what a node is made of, at named versions: the
// Kubernetes binaries, containerd, runc, the CNI plugins, and the images that
// kubeadm asks for. Everything comes from Go modules and Debian's packages, so
// it works where no release page, image registry or Docker can be reached.
//
// The versions are in one table, Sets. Build makes a set, or finds it in the
// cache (package cache): about ten minutes the first time on two cores, mostly
// compiling Kubernetes, and nothing afterwards. WorkloadImage makes a small
// image to run on the node.
//
// Images hold one static binary and nothing else, under the name, entry point
// and path that kubeadm's manifests expect; kube-proxy's also holds iptables,
// nft, conntrack and their libraries from Debian. They are deterministic: the
// same binaries give the same digests.
//
// To make a set by hand: go run ./test/components/build 1.35 1.36
package components

import (
	"fmt"
	"strings"
)

// A Set names the versions of all components of a node, without a leading v.
type Set struct {
	Name       string // Kubernetes' minor version, as 1.35
	Kubernetes string
	Containerd string
	CNI        string
	Etcd       string
	CoreDNS    string
	Pause      string // a tag only: the program is this repository's own
	Runc       string
}

// Versions that Debian 12 packages; every other comes from a Go module.
const (
	debianRunc = "1.1.5"
	debianCNI  = "1.1.1"
)

// Sets is the table of versions, oldest first. Etcd, CoreDNS and pause are what
// that Kubernetes' kubeadm asks for; Build checks it.
func Sets() []Set {
	return []Set{
		{
			Name:       "1.35",
			Kubernetes: "1.35.4",
			Containerd: "1.7.35",
			CNI:        debianCNI,
			Etcd:       "3.6.6",
			CoreDNS:    "1.13.1",
			Pause:      "3.10.1",
			Runc:       debianRunc,
		},
		{
			Name:       "1.36",
			Kubernetes: "1.36.3",
			Containerd: "2.3.7",
			CNI:        "1.9.1",
			Etcd:       "3.6.8",
			CoreDNS:    "1.14.2",
			Pause:      "3.10.2",
			Runc:       "1.4.3",
		},
	}
}

// Lookup finds a set by its name. The error lists the names that exist.
func Lookup(name string) (Set, error) {
	var names []string
	for _, s := range Sets() {
		if s.Name == name {
			return s, nil
		}
		names = append(names, s.Name)
	}
	return Set{}, fmt.Errorf("no set of components %q (there are %s)", name, strings.Join(names, ", "))
}
