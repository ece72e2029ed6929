package skeleton

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/node-upgrader/node-upgrader/hostexec"
	"github.com/node-upgrader/node-upgrader/image"
	"github.com/node-upgrader/node-upgrader/steps"
)

// Where the programs are by their units and the PATH. What is at some of these
// paths is a link: see host.
const (
	containerdPath = "/usr/bin/containerd"
	shimPath       = "/usr/bin/containerd-shim-runc-v2"
	ctrPath        = "/usr/bin/ctr"
	runcPath       = "/usr/sbin/runc"
	kubeletPath    = "/usr/bin/kubelet"
	kubeadmPath    = "/usr/bin/kubeadm"
	kubectlPath    = "/usr/local/bin/kubectl"
)

// newPrograms are the bundle's, by name.
func newPrograms() map[string]string {
	return map[string]string{
		"containerd": "containerd " + NewContainerd, "containerd-shim-runc-v2": "shim " + NewContainerd, "ctr": "ctr " + NewContainerd,
		"runc": "runc 1.3.4", "kubeadm": "kubeadm " + NewKubernetes, "kubelet": "kubelet " + NewKubernetes, "kubectl": "kubectl " + NewKubernetes,
		"bridge": "CNI bridge plugin v1.9.1", "portmap": "CNI portmap plugin v1.9.1", "tuning": "CNI tuning plugin v1.9.1",
	}
}

// New makes a node that runs the old versions and has yet to be upgraded. etcd
// is where the member of a control plane answers. A worker's API server is
// another node's, and at the new version.
func New(dir string, role steps.Role, etcd string) (*Node, error) {
	n := &Node{Role: role, dir: dir, fs: hostexec.NewFS(filepath.Join(dir, "root"))}
	if err := errors.Join(n.bundle(), n.host(etcd), os.WriteFile(filepath.Join(dir, "upgrader"), []byte("upgrader"), 0o755)); err != nil { //nolint:gosec // a program
		return nil, err
	}
	n.world = &world{file: filepath.Join(dir, "world.json"), root: n.Root(), opened: time.Now(), s: firstState(role)}
	for _, name := range []string{containerdUnit, kubeletUnit} {
		if err := (units{n}).Start(context.Background(), name); err != nil {
			return nil, err
		}
	}
	// It has been running for a while.
	return n, n.world.change(func(s *state) error {
		s.Now = s.Now.Add(time.Hour)
		n.world.tick()
		return nil
	})
}

func firstState(role steps.Role) state {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	s := state{
		Now: now, Boot: now.Add(-time.Hour), PID: 100, Cluster: OldKubernetes,
		Units: map[string]*unit{
			containerdUnit: {Unit: hostexec.Unit{ExecStart: [][]string{{containerdPath}}, KillMode: "process"}},
			kubeletUnit: {Unit: hostexec.Unit{
				ExecStart:   [][]string{{kubeletPath, "$KUBELET_CONFIG_ARGS", "$KUBELET_KUBEADM_ARGS"}},
				Environment: []string{"KUBELET_CONFIG_ARGS=--config=" + kubeletConfig},
				EnvFiles:    []hostexec.EnvFile{{Path: kubeletFlags, Optional: true}},
			}},
		},
		Node: corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: NodeName, ResourceVersion: "1"},
			Status: corev1.NodeStatus{
				NodeInfo:   corev1.NodeSystemInfo{KubeletVersion: OldKubernetes},
				Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
			},
		},
		Pods: []corev1.Pod{pod("web-1"), pod("web-2")},
	}
	for name, u := range s.Units {
		u.Name, u.LoadState, u.ActiveState, u.Fragment = name, "loaded", "inactive", "/lib/systemd/system/"+name
	}
	if role == steps.Worker {
		s.API, s.Cluster = NewKubernetes, NewKubernetes
	}
	return s
}

// pod is one that a drain evicts.
func pod(name string) corev1.Pod {
	owned := true
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name, UID: types.UID("uid-of-" + name),
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", Controller: &owned}},
		},
		Spec:   corev1.PodSpec{NodeName: NodeName},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
}

// bundle writes the bundle of the new versions.
func (n *Node) bundle() error {
	dir := filepath.Join(n.dir, "bundle")
	m := image.Manifest{SchemaVersion: image.SchemaVersion, Architecture: runtime.GOARCH, KubernetesVersion: NewKubernetes}
	for component, version := range map[string]string{
		image.Containerd: "v" + NewContainerd, image.Runc: "v1.3.4", image.CNIPlugins: "v1.9.1",
		image.Kubeadm: NewKubernetes, image.Kubelet: NewKubernetes, image.Kubectl: NewKubernetes,
	} {
		m.Components = append(m.Components, image.Component{Name: component, Version: version})
	}
	for name, text := range newPrograms() {
		component, place := name, "/usr/bin"
		switch {
		case strings.HasPrefix(text, "CNI"):
			component, place = image.CNIPlugins, "/opt/cni/bin"
		case name == "ctr", strings.HasPrefix(name, "containerd"):
			component, place = image.Containerd, "/usr/local/bin"
		}
		f := image.File{
			Path: component + "/" + name, Component: component, Place: place + "/" + name,
			SHA256: digest(text), Size: int64(len(text)), Mode: 0o755,
		}
		m.Files = append(m.Files, f)
		if err := put(filepath.Join(dir, f.Path), text, 0o755); err != nil {
			return err
		}
	}
	slices.SortFunc(m.Files, func(a, b image.File) int { return strings.Compare(a.Path, b.Path) })
	slices.SortFunc(m.Components, func(a, b image.Component) int { return strings.Compare(a.Name, b.Name) })
	data, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return put(filepath.Join(dir, image.ManifestName), string(data)+"\n", 0o644)
}

func put(file, text string, mode os.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(file, []byte(text), mode); err != nil {
		return err
	}
	return os.Chmod(file, mode) // whatever the umask
}

func manifestText(component, kubernetes, etcd string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %[1]s, namespace: kube-system}
spec:
  hostNetwork: true
  containers:
  - name: %[1]s
    image: %[2]s
    command:
    - %[1]s
    - --etcd-servers=%[3]s
    - --listen-client-urls=%[3]s
    - --data-dir=%[4]s
    - --name=%[6]s
    - --initial-cluster=%[6]s=https://10.0.0.1:2380
    - --initial-advertise-peer-urls=https://10.0.0.1:2380
    livenessProbe:
      httpGet: {host: 127.0.0.1, path: /livez, port: %[5]s, scheme: HTTPS}
`, component, imageOf(component, kubernetes), etcd, etcdData, port(component), NodeName)
}

// links are the node's symbolic links: they stay what they are, and what they
// point to is replaced.
func links() map[string]string {
	return map[string]string{
		"/opt/cni/bin": "/var/opt/cni/bin",                  // absolute
		kubeletPath:    "../../opt/kubernetes/1.35/kubelet", // relative
		containerdPath: "/opt/containerd/containerd-1.7",
	}
}

func (n *Node) in(p string) string { return filepath.Join(n.Root(), path.Clean("/"+p)) }
