package skeleton

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/node-upgrader/node-upgrader/steps"
)

// file is one of the host's, with what a careless replacement would lose.
type file struct {
	path, text string
	mode       os.FileMode
	group      int
	attribute  string // the value of an extended attribute
	also       string // another name of the same file
}

// host writes the root.
func (n *Node) host(etcd string) error {
	for from, to := range links() {
		if err := errors.Join(os.MkdirAll(filepath.Dir(n.in(from)), 0o755), os.Symlink(to, n.in(from))); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(n.in("/etc/systemd/system/multi-user.target.wants"), 0o755); err != nil {
		return err
	}
	files := []file{
		{path: "/opt/containerd/containerd-1.7", text: "containerd " + OldContainerd, mode: 0o755, attribute: "containerd's"},
		{path: shimPath, text: "shim " + OldContainerd, mode: 0o755},
		{path: ctrPath, text: "ctr " + OldContainerd, mode: 0o555, also: "/usr/bin/ctr-of-the-administrator"},
		{path: runcPath, text: "runc 1.1.5", mode: 0o750, group: 12, attribute: "runc's"},
		{path: "/etc/containerd/config.toml", text: "version = 2\n", mode: 0o640},
		{path: "/var/opt/cni/bin/bridge", text: "CNI bridge plugin v1.5.0", mode: 0o755, also: "/var/opt/cni/bin/multi"},
		{path: "/var/opt/cni/bin/portmap", text: "CNI portmap plugin v9.0.0", mode: 0o755}, // newer: another vendor's
		{path: "/var/opt/cni/bin/calico", text: "CNI calico plugin v3.30.0", mode: 0o755, attribute: "calico's"},
		{path: "/opt/kubernetes/1.35/kubelet", text: "kubelet " + OldKubernetes, mode: 0o755, attribute: "kubelet's", also: "/opt/kubernetes/kubelet-before"},
		{path: kubeadmPath, text: "kubeadm " + OldKubernetes, mode: 0o755, group: 12},
		{path: kubeletConfig, text: "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n", mode: 0o644, attribute: "configuration"},
		{path: kubeletFlags, text: "KUBELET_KUBEADM_ARGS=\"--node-ip=10.0.0.1\"\n", mode: 0o600},
		{path: "/var/lib/kubelet/cpu_manager_state", text: "the old format", mode: 0o600, group: 12},
		{path: "/var/lib/kubelet/memory_manager_state", text: "the old format", mode: 0o640},
		{path: kubernetesDir + "/kubelet.conf", text: "kind: Config\n", mode: 0o600},
	}
	if n.Role == steps.ControlPlane {
		files = append(files,
			file{path: kubectlPath, text: "kubectl " + OldKubernetes, mode: 0o700, group: 12},
			file{path: adminConf, text: "kind: Config\n", mode: 0o600, attribute: "administrator's"},
			file{path: apiServerCert, text: "a certificate\n", mode: 0o644},
			file{path: kubernetesDir + "/pki/ca.crt", text: "an authority\n", mode: 0o644},
		)
		for _, c := range components() {
			files = append(files, file{path: manifest(c), text: manifestText(c, OldKubernetes, etcd), mode: 0o600, attribute: c})
		}
		if err := n.etcdData(); err != nil {
			return err
		}
	}
	for _, f := range files {
		if err := n.write(f); err != nil {
			return fmt.Errorf("%s: %w", f.path, err)
		}
	}
	return nil
}

func (n *Node) write(f file) error {
	real := n.in(f.path)
	if err := put(real, f.text, f.mode); err != nil {
		return err
	}
	if os.Geteuid() == 0 {
		if err := errors.Join(os.Chown(real, 0, f.group), os.Chmod(real, f.mode)); err != nil {
			return err
		}
	}
	if f.attribute != "" {
		name, err := attributeOn(filepath.Dir(real))
		if err == nil {
			err = unix.Setxattr(real, name, []byte(f.attribute), 0)
		}
		if err != nil {
			return err
		}
	}
	if f.also != "" {
		if err := os.Link(real, n.in(f.also)); err != nil {
			return err
		}
	}
	long := time.Date(2024, 2, 29, 12, 0, 0, 123456789, time.UTC)
	return os.Chtimes(real, long, long)
}

// attributeOn is the name of an extended attribute that files in a directory may
// have.
func attributeOn(dir string) (string, error) {
	f, err := os.CreateTemp(dir, "attribute-")
	if err != nil {
		return "", err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	for _, name := range []string{"user.origin", "trusted.origin"} {
		if err = unix.Fsetxattr(int(f.Fd()), name, []byte("x"), 0); err == nil {
			return name, nil
		}
	}
	return "", fmt.Errorf("no extended attributes in %s (set TMPDIR to a directory where there are some): %w", dir, err)
}

// Scratch makes a directory for nodes, in memory where that can be: thousands of
// fsyncs take their time on a disk.
func Scratch() (string, error) {
	for _, parent := range []string{"/dev/shm", os.TempDir()} {
		dir, err := os.MkdirTemp(parent, "skeleton-")
		if err != nil {
			continue
		}
		if _, err = attributeOn(dir); err == nil {
			return dir, nil
		}
		os.Remove(dir)
	}
	return "", errors.New("no directory for a node: neither /dev/shm nor the one of TMPDIR can be written to and has extended attributes")
}
