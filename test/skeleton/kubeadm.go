package skeleton

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/node-upgrader/node-upgrader/hostexec"
	"github.com/node-upgrader/node-upgrader/steps"
)

const (
	kubernetesDir  = "/etc/kubernetes"
	manifestsDir   = kubernetesDir + "/manifests"
	kubeadmTmp     = kubernetesDir + "/tmp"
	kubeletConfig  = "/var/lib/kubelet/config.yaml"
	kubeletFlags   = "/var/lib/kubelet/kubeadm-flags.env"
	adminConf      = kubernetesDir + "/admin.conf"
	apiServerCert  = kubernetesDir + "/pki/apiserver.crt"
	etcdData       = "/var/lib/etcd"
	kubeadmVersion = "# written by kubeadm "
)

// components are the static pods in kubeadm's order.
func components() []string {
	return []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"}
}

func manifest(component string) string { return path.Join(manifestsDir, component+".yaml") }

// imageOf is a component's image in a version of Kubernetes.
func imageOf(component, kubernetes string) string {
	if component == "etcd" {
		kubernetes = map[string]string{OldKubernetes: "3.6.6-0", NewKubernetes: "3.6.8-0"}[kubernetes]
	}
	return "registry.k8s.io/" + component + ":" + kubernetes
}

// imageIn is the image in a manifest, "" in what is none, or is half of one.
func imageIn(text string) string {
	_, rest, _ := strings.Cut(text, " image: ")
	image, _, _ := strings.Cut(rest, "\n")
	if !strings.HasSuffix(text, "\n") {
		return ""
	}
	return image
}

// port is where a component answers for its health.
func port(component string) string {
	return map[string]string{"etcd": "2381", "kube-apiserver": "6443", "kube-controller-manager": "10257", "kube-scheduler": "10259"}[component]
}

// kubeadm is `kubeadm upgrade` as it changes a node: not one of its writes is
// safe against a power cut, and between its two renames a manifest is gone.
type kubeadm struct {
	n       *Node
	version string
}

func (k kubeadm) upgrade(mode string) error {
	if k.n.Role == steps.ControlPlane {
		if there, err := k.n.fs.Exists(manifest("kube-apiserver")); err != nil || !there {
			return fmt.Errorf("kubeadm would take this control plane for a worker: %w", err)
		}
		if err := k.controlPlane(mode); err != nil {
			return err
		}
	}
	return k.kubelet()
}

func (k kubeadm) controlPlane(mode string) error {
	backup, etcd := k.dir("kubeadm-backup-manifests-"), k.dir("kubeadm-backup-etcd-")
	next := k.dir("kubeadm-upgraded-manifests")
	if err := errors.Join(k.mkdir(backup), k.mkdir(etcd), k.mkdir(next)); err != nil {
		return err
	}
	for _, c := range components() {
		text, err := k.n.text(manifest(c))
		if err == nil && imageIn(text) == "" {
			err = errors.New(manifest(c) + " is no manifest")
		}
		if err != nil {
			return err
		}
		if c == "etcd" {
			if err := k.write(etcd+"/db", "a copy of etcd's data"); err != nil {
				return err
			}
		}
		text = strings.ReplaceAll(text, imageIn(text), imageOf(c, k.version))
		if err := errors.Join(k.write(next+"/"+c+".yaml", text), k.rename(manifest(c), backup+"/"+c+".yaml")); err != nil {
			return err
		}
		if err := k.rename(next+"/"+c+".yaml", manifest(c)); err != nil {
			return err
		}
		time.Sleep(2 * time.Second) // until the kubelet has started the pod
	}
	if mode == "apply" {
		if err := (api{k.n}).change(OpKubeadm, "upload the configuration", func(s *state) error { s.Cluster = k.version; return nil }); err != nil {
			return err
		}
	}
	for _, file := range []string{adminConf, apiServerCert} { // renewed
		text, err := k.n.text(file)
		if err != nil {
			return err
		}
		if err := k.write(file, sign(text, k.version)); err != nil {
			return err
		}
	}
	return nil
}

// kubelet writes the kubelet's configuration: in its place, and so for a moment
// there is half of it.
func (k kubeadm) kubelet() error {
	backup := k.dir("kubeadm-kubelet-config-")
	text, err := k.n.text(kubeletConfig)
	if err != nil {
		return err
	}
	if err := errors.Join(k.mkdir(backup), k.copy(kubeletConfig, backup+"/config.yaml", text)); err != nil {
		return err
	}
	next := sign(text, k.version)
	if err := errors.Join(k.write(kubeletConfig, next[:len(next)/2]), k.write(kubeletConfig, next)); err != nil {
		return err
	}
	flags, err := k.n.text(kubeletFlags)
	if err != nil {
		return err
	}
	return k.write(kubeletFlags, sign(flags, k.version))
}

// sign makes a text that a version has written of that of another.
func sign(text, version string) string {
	text, _, _ = strings.Cut(text, kubeadmVersion)
	return text + kubeadmVersion + version + "\n"
}

func (k kubeadm) dir(prefix string) string {
	return kubeadmTmp + "/" + prefix + k.n.now().Format("2006-01-02-15-04-05")
}

// change is one change by kubeadm, of files by their paths on the host.
func (k kubeadm) change(what string, change func(at func(string) string) error, paths ...string) error {
	return k.n.effect(hostexec.Effect{Op: OpKubeadm, Object: what + " " + strings.Join(paths, " ")}, nil, func() error {
		return change(func(p string) string { return filepath.Join(k.n.Root(), p) })
	})
}

func (k kubeadm) mkdir(p string) error {
	return k.change("mkdir", func(at func(string) string) error { return os.MkdirAll(at(p), 0o700) }, p)
}

func (k kubeadm) rename(from, to string) error {
	return k.change("rename", func(at func(string) string) error { return os.Rename(at(from), at(to)) }, from, to)
}

// write keeps the mode and the owner of a file that is there.
func (k kubeadm) write(p, text string) error {
	return k.change("write", func(at func(string) string) error { return os.WriteFile(at(p), []byte(text), 0o600) }, p)
}

// copy keeps the mode only.
func (k kubeadm) copy(from, to, text string) error {
	return k.change("copy", func(at func(string) string) error {
		info, err := os.Stat(at(from))
		if err != nil {
			return err
		}
		return put(at(to), text, info.Mode().Perm())
	}, from, to)
}
