package image

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// binary is a file that a bundle has, where a host has it, and how it tells its
// version.
type binary struct {
	component, name string
	source          string // directory in what Build reads
	place           string // directory on the host, as image-builder lays it out
	ask             []string
	answer          *regexp.Regexp
}

var (
	bareAnswer       = regexp.MustCompile(`^(v\S+)`)
	kubeletAnswer    = regexp.MustCompile(`^Kubernetes (v\S+)`)
	kubectlAnswer    = regexp.MustCompile(`(?m)^Client Version: (v\S+)`)
	containerdAnswer = regexp.MustCompile(`^(?:containerd|ctr) \S+ (v?[0-9]\S*)`)
	shimAnswer       = regexp.MustCompile(`(?m)^\s*Version:\s+(v?[0-9]\S*)`)
	runcAnswer       = regexp.MustCompile(`^runc version (v?[0-9]\S*)`)
	cniAnswer        = regexp.MustCompile(`(?m)^CNI \S+ plugin (?:version )?(v?[0-9]\S*)`)
)

// binaries are all that a bundle must have, but for the CNI plugins.
func binaries() []binary {
	version := []string{"--version"}
	return []binary{
		{Containerd, "containerd", "bin", "/usr/local/bin", version, containerdAnswer},
		{Containerd, "containerd-shim-runc-v2", "bin", "/usr/local/bin", []string{"-v"}, shimAnswer},
		{Containerd, "ctr", "bin", "/usr/local/bin", version, containerdAnswer},
		{Runc, "runc", "bin", "/usr/local/sbin", version, runcAnswer},
		{Kubeadm, "kubeadm", "bin", "/usr/bin", []string{"version", "-o", "short"}, bareAnswer},
		{Kubelet, "kubelet", "bin", "/usr/bin", version, kubeletAnswer},
		{Kubectl, "kubectl", "bin", "/usr/bin", []string{"version", "--client"}, kubectlAnswer},
	}
}

// cniPlugin is a plugin of github.com/containernetworking/plugins. Called
// without CNI_COMMAND it tells its version.
func cniPlugin(name string) binary {
	return binary{CNIPlugins, name, "cni", "/opt/cni/bin", nil, cniAnswer}
}

// pluginNames are those of the CNI project. Whatever else is in a node's
// /opt/cni/bin belongs to somebody else.
func pluginNames() []string {
	return []string{
		"bandwidth", "bridge", "dhcp", "dummy", "firewall", "host-device", "host-local", "ipvlan", "loopback",
		"macvlan", "portmap", "ptp", "sbr", "static", "tap", "tuning", "vlan", "vrf",
	}
}

// survey returns the binaries that are in a directory of components. All that
// is missing is named in one error. bin/ may hold other things too, such as a
// control plane's binaries; cni/ may not.
func survey(from string) ([]binary, error) {
	found := binaries()
	var problems []error
	for _, b := range found {
		if err := isFile(b.in(from)); err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", b.component, err))
		}
	}
	entries, err := os.ReadDir(filepath.Join(from, "cni"))
	if err != nil {
		problems = append(problems, fmt.Errorf("%s: %w", CNIPlugins, err))
	}
	plugins := 0
	for _, e := range entries {
		name := e.Name()
		switch {
		case slices.Contains(pluginNames(), name):
			plugins++
			found = append(found, cniPlugin(name))
			if err := isFile(filepath.Join(from, "cni", name)); err != nil {
				problems = append(problems, fmt.Errorf("%s: %w", CNIPlugins, err))
			}
		case strings.HasPrefix(name, "README") || strings.HasPrefix(name, "LICENSE"):
		default:
			problems = append(problems, fmt.Errorf("cni/%s is not a plugin of the CNI project: take it out", printable(name)))
		}
	}
	if err == nil && plugins == 0 {
		problems = append(problems, fmt.Errorf("%s: no plugin in cni/", CNIPlugins))
	}
	return found, errors.Join(problems...)
}

// isFile follows links: a builder's cache may be made of them.
func isFile(name string) error {
	fi, err := os.Stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s is missing", name)
	case err == nil && (!fi.Mode().IsRegular() || fi.Size() == 0):
		return fmt.Errorf("%s is not a file with something in it", name)
	}
	return err
}

// in is where the binary lies in a directory of components.
func (b binary) in(from string) string { return filepath.Join(from, b.source, b.name) }

// file is the binary's entry in a manifest, without what its bytes tell.
func (b binary) file() File {
	return File{Path: b.component + "/" + b.name, Component: b.component, Place: path.Join(b.place, b.name), Mode: 0o755}
}
