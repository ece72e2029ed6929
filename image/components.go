package image

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
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

// foundBinary is a binary and the file that it is.
type foundBinary struct {
	binary
	path     string
	replaced bool // it is not the one of the directory of components
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

// Plugins are the names of the CNI project's plugins. Whatever else is in a
// node's /opt/cni/bin belongs to somebody else.
func Plugins() []string {
	return []string{
		"bandwidth", "bridge", "dhcp", "dummy", "firewall", "host-device", "host-local", "ipvlan", "loopback",
		"macvlan", "portmap", "ptp", "sbr", "static", "tap", "tuning", "vlan", "vrf",
	}
}

// survey returns the binaries that are in a directory of components, or, by
// name, in their place. All that is missing is named in one error. bin/ may hold
// other things too, such as a control plane's binaries; cni/ may not.
func survey(from string, replace map[string]string) ([]foundBinary, error) {
	wanted := binaries()
	plugins, err := surveyPlugins(from)
	var problems []error
	if err != nil {
		problems = append(problems, err)
	}
	for _, name := range slices.Sorted(maps.Keys(replace)) {
		switch {
		case slices.Contains(Plugins(), name):
			if !slices.Contains(plugins, name) {
				plugins = append(plugins, name)
			}
		case !slices.ContainsFunc(wanted, func(b binary) bool { return b.name == name }):
			problems = append(problems, fmt.Errorf("%s cannot be replaced: it is none of a bundle's files (%s)",
				printable(name), strings.Join(FileNames(), ", ")))
		}
	}
	for _, name := range plugins {
		wanted = append(wanted, cniPlugin(name))
	}
	found := make([]foundBinary, len(wanted))
	for i, b := range wanted {
		found[i] = foundBinary{binary: b, path: filepath.Join(from, b.source, b.name)}
		if other := replace[b.name]; other != "" {
			found[i].path, found[i].replaced = other, true
		}
		if err := isFile(found[i].path); err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", b.component, err))
		}
	}
	return found, errors.Join(problems...)
}

// surveyPlugins names the plugins of cni/, with an error about all that is wrong
// there.
func surveyPlugins(from string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(from, "cni"))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", CNIPlugins, err)
	}
	var plugins []string
	var problems []error
	for _, e := range entries {
		name := e.Name()
		switch {
		case slices.Contains(Plugins(), name):
			plugins = append(plugins, name)
		case strings.HasPrefix(name, "README") || strings.HasPrefix(name, "LICENSE"):
		default:
			problems = append(problems, fmt.Errorf("cni/%s is not a plugin of the CNI project: take it out", printable(name)))
		}
	}
	if len(plugins) == 0 && len(problems) == 0 {
		problems = append(problems, fmt.Errorf("%s: no plugin in cni/", CNIPlugins))
	}
	return plugins, errors.Join(problems...)
}

// FileNames are the names of all files that a bundle may have: what Build takes
// from bin/, and the CNI project's plugins.
func FileNames() []string {
	var names []string
	for _, b := range binaries() {
		names = append(names, b.name)
	}
	return append(names, Plugins()...)
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

// file is the binary's entry in a manifest, without what its bytes tell.
func (b binary) file() File {
	return File{Path: b.component + "/" + b.name, Component: b.component, Place: path.Join(b.place, b.name), Mode: 0o755}
}
