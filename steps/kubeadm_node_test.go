package steps

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"
	fakediscovery "k8s.io/client-go/discovery/fake"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/node-upgrader/node-upgrader/hostexec"
	"github.com/node-upgrader/node-upgrader/hostexec/hostexectest"
	"github.com/node-upgrader/node-upgrader/image"
	"github.com/node-upgrader/node-upgrader/steps/cri"
	"github.com/node-upgrader/node-upgrader/steps/cri/critest"
)

const (
	oldVersion, newVersion = "v1.35.4", "v1.36.3"
	testNode               = "node-1"
)

// kubeadmNode is a node of kubeadm: a temporary directory as its root, and
// strict fakes for what runs on it.
type kubeadmNode struct {
	t        *testing.T
	fs       hostexec.FS
	commands *hostexectest.Commands
	runtime  *critest.Runtime
	api      *fake.Clientset
	etcd     *fakeEtcd
	env      Env
	log      *strings.Builder

	apiDown error            // what the API server's connection gives
	ill     map[string]error // by part of a health endpoint
	now     time.Time
}

type nodeOption func(*nodeOptions)

type nodeOptions struct {
	role         Role
	version      string // of the control plane on this node
	cluster      string // ClusterConfiguration
	apiServer    string
	externalEtcd bool
	cordoned     bool
	kubeadm      KubeadmOptions
}

func worker(o *nodeOptions)                   { o.role, o.apiServer, o.cluster = Worker, newVersion, newVersion }
func externalEtcd(o *nodeOptions)             { o.externalEtcd = true }
func cordoned(o *nodeOptions)                 { o.cordoned = true }
func atTarget(o *nodeOptions)                 { o.version = newVersion }
func clusterAt(v string) nodeOption           { return func(o *nodeOptions) { o.cluster = v } }
func kubeadmWith(k KubeadmOptions) nodeOption { return func(o *nodeOptions) { o.kubeadm = k } }
func apiServerAt(v string) nodeOption         { return func(o *nodeOptions) { o.apiServer = v } }
func etcdImage(v string) string {
	return map[string]string{oldVersion: "3.6.6-0", newVersion: "3.6.8-0"}[v]
}
func imageID(ref string) string             { return "sha256:" + sha256Of([]byte(ref)) }
func sha256Of(data []byte) string           { s := sha256.Sum256(data); return hex.EncodeToString(s[:]) }
func (n *kubeadmNode) path(p string) string { return filepath.Join(n.fs.Root(), p) }

func newKubeadmNode(t *testing.T, options ...nodeOption) *kubeadmNode {
	t.Helper()
	o := nodeOptions{role: ControlPlane, version: oldVersion, cluster: oldVersion, apiServer: oldVersion}
	for _, option := range options {
		option(&o)
	}
	n := &kubeadmNode{
		t: t, fs: hostexec.NewFS(t.TempDir()), commands: &hostexectest.Commands{}, log: &strings.Builder{},
		runtime: critest.New(critest.State{Version: "2.3.7", Images: map[string]string{}}),
		ill:     map[string]error{}, now: time.Date(2026, 11, 21, 11, 0, 0, 0, time.UTC),
	}
	ca := newTestCA(t)
	n.write("/usr/bin/kubeadm", "old kubeadm", 0o755)
	n.write("/usr/bin/kubelet", "old kubelet", 0o755)
	n.write(kubeletConf, strings.ReplaceAll(kubeletConfTemplate, "KEY", "/var/lib/kubelet/pki/kubelet-client-current.pem"), 0o600)
	cert, key := ca.issue(t, "system:node:"+testNode)
	n.write("/var/lib/kubelet/pki/kubelet-client-2026.pem", string(cert)+string(key), 0o600)
	if err := os.Symlink("/var/lib/kubelet/pki/kubelet-client-2026.pem", n.path("/var/lib/kubelet/pki/kubelet-client-current.pem")); err != nil {
		t.Fatal(err)
	}
	n.write(kubeletConfig, kubeletConfigAt(oldVersion), 0o644)
	n.write(kubeletFlagsFile, "KUBELET_KUBEADM_ARGS=\"\"\n", 0o644)
	n.commands.On("kubeadm version", func(hostexec.Command) (string, error) { return oldVersion + "\n", nil })
	n.commands.Say("kubelet --version", "Kubernetes "+oldVersion+"\n")
	if o.role == ControlPlane {
		n.write(adminConf, "admin", 0o600)
		n.write(apiServerCert, "cert", 0o644)
		n.controlPlane(ca, o)
	}
	n.cluster(o)
	n.env = n.newEnv(o)
	return n
}

func (n *kubeadmNode) controlPlane(ca *testCA, o nodeOptions) {
	etcd := "https://10.0.0.9:2379"
	if !o.externalEtcd {
		n.etcd = newFakeEtcd(n.t, ca)
		etcd = n.etcd.url
		n.write("/var/lib/etcd/member/snap/db", strings.Repeat("x", 4096), 0o600)
		n.write("/etc/kubernetes/pki/etcd/ca.crt", string(ca.pem), 0o644)
		cert, key := ca.issue(n.t, "kube-etcd-healthcheck-client")
		n.write("/etc/kubernetes/pki/etcd/healthcheck-client.crt", string(cert), 0o644)
		n.write("/etc/kubernetes/pki/etcd/healthcheck-client.key", string(key), 0o600)
	}
	for _, c := range controlPlane() {
		if c != etcdName || !o.externalEtcd {
			n.write(manifestPath(c), manifestOf(c, o.version, etcd), 0o600)
			n.runAs(c, o.version)
		}
	}
}

func kubeletConfigAt(v string) string {
	return "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n# " + v + "\n"
}

// runAs makes the node's containerd run a component at a version.
func (n *kubeadmNode) runAs(component, v string) {
	ref := imageOf(component, v)
	n.runtime.Change(func(s *critest.State) {
		s.Images[ref] = imageID(ref)
		var kept []cri.Container
		for _, c := range s.Containers {
			if c.Name != component {
				kept = append(kept, c)
			}
		}
		s.Containers = append(kept, cri.Container{
			ID: component + v, Namespace: "kube-system", Pod: component + "-" + testNode, Name: component, ImageID: imageID(ref),
		})
	})
}

func (n *kubeadmNode) cluster(o nodeOptions) {
	n.api = fake.NewClientset(
		&corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: testNode},
			Spec:       corev1.NodeSpec{Unschedulable: o.cordoned},
			Status:     corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{KubeletVersion: oldVersion}},
		},
		clusterConfiguration(o.cluster),
	)
	n.apiServerAt(o.apiServer)
}

func clusterConfiguration(v string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kubeadm-config"},
		Data:       map[string]string{"ClusterConfiguration": "apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\nkubernetesVersion: " + v + "\n"},
	}
}

func (n *kubeadmNode) apiServerAt(v string) {
	n.api.Discovery().(*fakediscovery.FakeDiscovery).FakedServerVersion = &version.Info{GitVersion: v}
}

func (n *kubeadmNode) newEnv(o nodeOptions) Env {
	dir := n.t.TempDir()
	for name, content := range map[string]string{"kubeadm": "new kubeadm", "kubelet": "new kubelet"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			n.t.Fatal(err)
		}
	}
	file := func(name, content string) image.File {
		return image.File{
			Path: name, Component: name, Place: "/opt/bundle/" + name, SHA256: sha256Of([]byte(content)), Size: int64(len(content)), Mode: 0o755,
		}
	}
	return Env{
		Host: hostexec.Host{FS: n.fs, Commands: n.commands, Units: hostexectest.NewUnits(hostexec.Unit{
			Name: "kubelet.service", ActiveState: "active", ExecStart: [][]string{{"/usr/bin/kubelet", "$KUBELET_KUBEADM_ARGS"}},
		})},
		Bundle: &image.Bundle{Dir: dir, Digest: "sha256:bundle", Manifest: image.Manifest{
			KubernetesVersion: newVersion,
			Components:        []image.Component{{Name: image.Kubeadm, Version: newVersion}, {Name: image.Kubelet, Version: newVersion}},
			Files:             []image.File{file("kubeadm", "new kubeadm"), file("kubelet", "new kubelet")},
		}},
		Node:    Node{Name: testNode, Role: o.role},
		Record:  NewRecord(n.fs, "test"),
		Runtime: n.runtime.Dial,
		Kube: func(context.Context) (kubernetes.Interface, error) {
			if n.apiDown != nil {
				return nil, n.apiDown
			}
			return n.api, nil
		},
		Admin: func(context.Context) (kubernetes.Interface, error) { return n.api, n.apiDown },
		Probe: func(_ context.Context, url string) error {
			for part, err := range n.ill {
				if strings.Contains(url, part) {
					return err
				}
			}
			return nil
		},
		Clock: Clock{
			Now: func() time.Time { return n.now },
			Sleep: func(ctx context.Context, d time.Duration) error {
				n.now = n.now.Add(d)
				return ctx.Err()
			},
		},
		Log:     slog.New(slog.NewTextHandler(&syncWriter{w: n.log}, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Options: Options{Kubeadm: o.kubeadm},
	}
}

type syncWriter struct {
	mu sync.Mutex
	w  *strings.Builder
}

func (s *syncWriter) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.w.Write(p)
}

func (n *kubeadmNode) write(path, content string, mode os.FileMode) {
	n.t.Helper()
	if err := os.MkdirAll(filepath.Dir(n.path(path)), 0o755); err != nil {
		n.t.Fatal(err)
	}
	if err := os.WriteFile(n.path(path), []byte(content), mode); err != nil {
		n.t.Fatal(err)
	}
}

func (n *kubeadmNode) read(path string) string {
	n.t.Helper()
	data, err := os.ReadFile(n.path(path))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		n.t.Fatal(err)
	}
	return string(data)
}

func (n *kubeadmNode) remove(path string) {
	n.t.Helper()
	if err := os.Remove(n.path(path)); err != nil {
		n.t.Fatal(err)
	}
}

const kubeletConfTemplate = `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:6443"}}]
contexts: [{name: x, context: {cluster: c, user: default-auth}}]
current-context: x
users: [{name: default-auth, user: {client-certificate: "KEY", client-key: "KEY"}}]
`
