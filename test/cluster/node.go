package cluster

import (
	"bytes"
	"context"
	"embed"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"text/template"

	"github.com/node-upgrader/node-upgrader/test/cache"
	"github.com/node-upgrader/node-upgrader/test/components"
	"github.com/node-upgrader/node-upgrader/test/host"
)

//go:embed files
var files embed.FS //nolint:gochecknoglobals // that is how embedding works

// layoutVersion is part of every key: raise it when the code in this package
// makes something else of the same files and components.
const layoutVersion = "2"

const (
	// ForeignPlugin is a file in the directory of the CNI plugins that belongs
	// to no component set.
	ForeignPlugin = "/opt/cni/bin/foreign-cni"
	// ForeignPluginText is what is in it.
	ForeignPluginText = "#!/bin/sh\n# Somebody else's plugin.\nexit 0\n"
	// WorkloadData is where a node's workload keeps its data on the host.
	WorkloadData = "/var/lib/workload"

	controlPlaneName, controlPlaneIP = "cp", "10.89.0.11"
	workerName, workerIP             = "worker", "10.89.0.12"
	tokenTTL                         = "15m"
)

// nodeFacts is what the templates in files know.
type nodeFacts struct {
	Name, IP, PodSubnet       string
	OtherIP, OtherPodSubnet   string
	Kubernetes, Pause, Driver string
	Workload, WorkloadData    string
	Token, CAHash             string
	SystemdCgroup             bool
}

// factsOf gives a control plane the pod subnet that the controller manager will
// give it: the first that it hands out, and a worker the second.
func (b *build) factsOf(name string) nodeFacts {
	f := nodeFacts{
		Name: name, IP: controlPlaneIP, PodSubnet: "10.244.0.0/24",
		OtherIP: workerIP, OtherPodSubnet: "10.244.1.0/24",
		Kubernetes: b.set.Kubernetes, Pause: b.set.Pause,
		Driver: "cgroupfs", SystemdCgroup: b.systemd,
		Workload: b.workloadRef, WorkloadData: WorkloadData,
	}
	if b.systemd {
		f.Driver = "systemd"
	}
	if name == workerName {
		f.IP, f.OtherIP = f.OtherIP, f.IP
		f.PodSubnet, f.OtherPodSubnet = f.OtherPodSubnet, f.PodSubnet
	}
	return f
}

// render fills one of the files.
func render(name string, facts nodeFacts) ([]byte, error) {
	t, err := template.ParseFS(files, "files/"+name)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	if err := t.Option("missingkey=error").Execute(&out, facts); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// filesKey is all embedded text.
func filesKey() string {
	var key strings.Builder
	_ = fs.WalkDir(files, ".", func(name string, d fs.DirEntry, _ error) error {
		if !d.IsDir() {
			text, _ := files.ReadFile(name)
			fmt.Fprintf(&key, "%s\n%s\n", name, text)
		}
		return nil
	})
	return key.String()
}

// layer returns the directory with a node's own files, to be laid over the
// base. Its programs are links to those in the cache.
func (b *build) layer(ctx context.Context) (string, error) {
	key := strings.Join([]string{layoutVersion, b.parts.Bin, b.parts.CNI, fmt.Sprint(b.systemd), filesKey()}, "\n")
	return cache.DirContext(ctx, "node-layer", key, func(tmp string) error {
		for _, place := range []struct{ from, to string }{
			{"kubelet", "usr/bin"},
			{"kubeadm", "usr/bin"},
			{"kubectl", "usr/bin"},
			{"containerd", "usr/local/bin"},
			{"containerd-shim-runc-v2", "usr/local/bin"},
			{"ctr", "usr/local/bin"},
			{"runc", "usr/local/sbin"},
		} {
			if err := link(filepath.Join(b.parts.Bin, place.from), filepath.Join(tmp, place.to, place.from)); err != nil {
				return err
			}
		}
		plugins, err := os.ReadDir(b.parts.CNI)
		if err != nil {
			return err
		}
		for _, p := range plugins {
			if err := link(filepath.Join(b.parts.CNI, p.Name()), filepath.Join(tmp, "opt/cni/bin", p.Name())); err != nil {
				return err
			}
		}
		return b.layerFiles(tmp)
	})
}

func (b *build) layerFiles(tmp string) error {
	config, err := render("containerd.toml", b.factsOf(controlPlaneName))
	if err != nil {
		return err
	}
	text := map[string]string{
		"etc/containerd/config.toml": string(config),
		"etc/default/kubelet":        "KUBELET_EXTRA_ARGS=\n",
		ForeignPlugin:                ForeignPluginText,
	}
	for name, to := range map[string]string{
		"containerd.service": "usr/local/lib/systemd/system/containerd.service",
		"kubelet.service":    "usr/lib/systemd/system/kubelet.service",
		"10-kubeadm.conf":    "usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf",
	} {
		data, err := files.ReadFile("files/" + name)
		if err != nil {
			return err
		}
		text[to] = string(data)
	}
	for name, data := range text {
		mode := os.FileMode(0o644)
		if name == ForeignPlugin {
			mode = 0o755
		}
		name = filepath.Join(tmp, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(name, []byte(data), mode); err != nil {
			return err
		}
	}
	// As `systemctl enable containerd` does.
	wants := filepath.Join(tmp, "etc/systemd/system/multi-user.target.wants")
	if err := os.MkdirAll(wants, 0o755); err != nil {
		return err
	}
	return os.Symlink("/usr/local/lib/systemd/system/containerd.service", filepath.Join(wants, "containerd.service"))
}

func link(from, to string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return os.Link(from, to)
}

// importImages imports every archive of a set, and the workload's.
func importImages(ctx context.Context, m host.Machine, parts components.Built, workload string) error {
	archives, err := filepath.Glob(filepath.Join(parts.Images, "*.tar"))
	if err != nil {
		return err
	}
	if len(archives) < len(parts.ImageNames) {
		return fmt.Errorf("%d image archives for %d images in %s", len(archives), len(parts.ImageNames), parts.Images)
	}
	for _, archive := range append(archives, workload) {
		if err := importImage(ctx, m, archive); err != nil {
			return err
		}
	}
	return nil
}

func importImage(ctx context.Context, m host.Machine, archive string) error {
	f, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = m.Exec(ctx, host.Cmd{Args: []string{"ctr", "-n", "k8s.io", "images", "import", "-"}, Stdin: f})
	return err
}
