package steps

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/node-upgrader/node-upgrader/hostexec"
	"github.com/node-upgrader/node-upgrader/image"
	"github.com/node-upgrader/node-upgrader/steps/kube"
)

// How long an API server that does not answer is asked again where it is only
// looked at, and how long one answer may take.
const (
	apiLook   = 10 * time.Second
	apiAnswer = 5 * time.Second
)

// findVersions asks the bundle, the node's disk and, when it answers, the API
// server.
func findVersions(ctx context.Context, env Env) (versions, []Fact, error) {
	v, err := bundleVersions(env.Bundle)
	if err != nil {
		return v, nil, err
	}
	v.role = env.Node.Role
	want := "v" + v.target.String()
	var facts []Fact
	found := func(to **version.Version, name, want string, have string, err error) {
		if err == nil {
			*to, err = version.ParseSemantic(have)
		}
		if err != nil {
			have = "unknown: " + err.Error()
		}
		facts = append(facts, Fact{Name: name, Have: have, Want: want})
	}
	have, err := kubeadmVersion(ctx, env)
	found(&v.kubeadm, "kubeadm", "v"+v.bundleKubeadm.String(), have, err)
	have, err = kubeletVersion(ctx, env)
	found(&v.kubelet, "kubelet", "v"+v.bundleKubelet.String(), have, err)
	if v.role == ControlPlane {
		have, err = manifestVersion(env.Host.FS)
		found(&v.controlPlane, "control plane", want, have, err)
	} else {
		want = "" // the API server and the cluster are not this node's to upgrade
	}
	client, have, err := reachAPI(ctx, env, apiLook)
	if ctx.Err() != nil {
		return v, facts, context.Cause(ctx)
	}
	found(&v.apiServer, "API server", want, have, err)
	if err != nil {
		return v, facts, nil
	}
	have, err = clusterVersion(ctx, client)
	found(&v.cluster, "cluster", want, have, err)
	node, err := getNode(ctx, client, env.Node.Name)
	if err == nil {
		have = node.Status.NodeInfo.KubeletVersion
	}
	found(&v.node, "node", "v"+v.bundleKubelet.String(), have, err)
	return v, facts, nil
}

// toolDirs are where a node's administrator's tools are, in PATH's order.
func toolDirs() []string {
	return []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin"}
}

// onPath is the path of a program of the host, "" when it is in none of the
// directories of PATH.
func onPath(host hostexec.FS, name string) (string, error) {
	for _, dir := range toolDirs() {
		p := path.Join(dir, name)
		info, err := host.Stat(p)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return "", err
		}
		if info.Mode().IsRegular() && info.Mode()&fs.FileMode(0o111) != 0 {
			return p, nil
		}
	}
	return "", nil
}

func kubeadmVersion(ctx context.Context, env Env) (string, error) {
	binary, err := onPath(env.Host.FS, image.Kubeadm)
	if err != nil {
		return "", err
	}
	if binary == "" {
		return "", errors.New("no kubeadm in " + strings.Join(toolDirs(), ", "))
	}
	out, err := ask(ctx, env.Host, binary, "version", "--output=short")
	return strings.TrimSpace(string(out.Stdout)), err
}

// kubeletVersion asks the program that the kubelet's unit starts.
func kubeletVersion(ctx context.Context, env Env) (string, error) {
	unit, err := env.Host.Units.Show(ctx, "kubelet.service")
	if err != nil {
		return "", err
	}
	binary, err := unit.Binary()
	if err != nil {
		if binary, _ = onPath(env.Host.FS, image.Kubelet); binary == "" {
			return "", err
		}
	}
	out, err := ask(ctx, env.Host, binary, "--version")
	return strings.TrimPrefix(strings.TrimSpace(string(out.Stdout)), "Kubernetes "), err
}

// manifestVersion is this control plane's version by its API server's image.
func manifestVersion(host hostexec.FS) (string, error) {
	file := manifestPath(kubeAPIServer)
	p, err := readStaticPod(host, kubeAPIServer, file)
	if err != nil {
		return "", err
	}
	v := imageVersion(p.image())
	if v == nil {
		return "", fmt.Errorf("%s: no version in image %s", file, p.image())
	}
	return "v" + v.String(), nil
}

// reachAPI connects to the API server and returns its version, asking again
// for as long as bound while it does not answer or is not ready: before that
// it refuses what it will allow a moment later.
func reachAPI(ctx context.Context, env Env, bound time.Duration) (client kubernetes.Interface, v string, err error) {
	var refused error
	err = within(ctx, env, bound, time.Second, func(ctx context.Context) (err error) {
		ctx, cancel := context.WithTimeout(ctx, apiAnswer)
		defer cancel()
		if client, err = env.Kube(ctx); err == nil {
			err = kube.Ready(ctx, client)
		}
		if err == nil {
			v, err = serverVersion(ctx, client)
		}
		// An API server that has just started knows nobody's rights yet.
		starting := apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err)
		if err != nil && !starting && !kube.Transient(err) {
			refused, err = err, nil
		}
		return err
	})
	if err = errors.Join(err, refused); err != nil {
		return nil, "", fmt.Errorf("reach the API server: %w", err)
	}
	return client, v, nil
}

// serverVersion is discovery's ServerVersion, which knows no context, bounded
// by one.
func serverVersion(ctx context.Context, client kubernetes.Interface) (string, error) {
	type answer struct {
		v   string
		err error
	}
	ch := make(chan answer, 1)
	go func() {
		info, err := client.Discovery().ServerVersion()
		if err != nil {
			ch <- answer{err: err}
			return
		}
		ch <- answer{v: info.GitVersion}
	}()
	select {
	case a := <-ch:
		return a.v, a.err
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

// clusterVersion is ClusterConfiguration.kubernetesVersion in the ConfigMap
// kubeadm-config, which every node of kubeadm may read.
func clusterVersion(ctx context.Context, client kubernetes.Interface) (string, error) {
	text, err := clusterConfig(ctx, client)
	if err != nil {
		return "", err
	}
	var config struct {
		KubernetesVersion string `json:"kubernetesVersion"`
	}
	if err := yaml.Unmarshal([]byte(text), &config); err != nil {
		return "", fmt.Errorf("read kubeadm-config: %w", err)
	}
	if config.KubernetesVersion == "" {
		return "", errors.New("read kubeadm-config: no kubernetesVersion in ClusterConfiguration")
	}
	return config.KubernetesVersion, nil
}

// clusterConfig is kubeadm's ClusterConfiguration.
func clusterConfig(ctx context.Context, client kubernetes.Interface) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, apiAnswer)
	defer cancel()
	cm, err := client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, "kubeadm-config", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "", &HintError{Err: err, Hint: "kubeadm init phase upload-config kubeadm --config YOURS"}
	}
	if err != nil {
		return "", fmt.Errorf("read kubeadm-config: %w", err)
	}
	return cm.Data["ClusterConfiguration"], nil
}

func getNode(ctx context.Context, client kubernetes.Interface, name string) (*corev1.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, apiAnswer)
	defer cancel()
	node, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read node %s: %w", name, err)
	}
	return node, nil
}
