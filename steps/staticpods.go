package steps

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/version"
	"sigs.k8s.io/yaml"

	"github.com/node-upgrader/node-upgrader/hostexec"
	"github.com/node-upgrader/node-upgrader/steps/cri"
)

// The components of a control plane, by the names of their static pods.
const (
	etcdName              = "etcd"
	kubeAPIServer         = "kube-apiserver"
	kubeControllerManager = "kube-controller-manager"
	kubeScheduler         = "kube-scheduler"
)

// controlPlane are the components in the order in which kubeadm upgrades them.
func controlPlane() []string {
	return []string{etcdName, kubeAPIServer, kubeControllerManager, kubeScheduler}
}

func manifestPath(component string) string { return path.Join(manifestsDir, component+".yaml") }

// staticPod is a component of the control plane as its manifest has it.
type staticPod struct {
	component string
	pod       *corev1.Pod
}

// staticPods reads the manifests that are there, in kubeadm's order.
func staticPods(fs hostexec.FS) ([]staticPod, error) {
	var pods []staticPod
	for _, name := range controlPlane() {
		p, err := readStaticPod(fs, name, manifestPath(name))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		pods = append(pods, p)
	}
	return pods, nil
}

func readStaticPod(fs hostexec.FS, component, file string) (staticPod, error) {
	data, err := fs.ReadFile(file)
	if err != nil {
		return staticPod{}, err
	}
	p, err := parseStaticPod(component, data)
	if err != nil {
		return staticPod{}, fmt.Errorf("%s: %w", file, err)
	}
	return p, nil
}

func parseStaticPod(component string, data []byte) (staticPod, error) {
	pod := new(corev1.Pod)
	if err := yaml.Unmarshal(data, pod); err != nil {
		return staticPod{}, err
	}
	if pod.Kind != "Pod" || len(pod.Spec.Containers) == 0 {
		return staticPod{}, errors.New("not a pod with containers")
	}
	return staticPod{component: component, pod: pod}, nil
}

// container is the component's own, whatever others a patch has added.
func (p staticPod) container() corev1.Container {
	for _, c := range p.pod.Spec.Containers {
		if c.Name == p.component {
			return c
		}
	}
	return p.pod.Spec.Containers[0]
}

func (p staticPod) image() string { return p.container().Image }

// flag is the value of --name in the component's command, "" without it. The
// last one counts, as the programs have it.
func (p staticPod) flag(name string) string {
	c, value := p.container(), ""
	for _, arg := range append(append([]string{}, c.Command...), c.Args...) {
		if v, ok := strings.CutPrefix(arg, "--"+name+"="); ok {
			value = v
		}
	}
	return value
}

// healthURL is the endpoint that the kubelet asks: the readiness probe's, else
// the startup's, else the liveness probe's.
func (p staticPod) healthURL() (string, error) {
	c := p.container()
	for _, probe := range []*corev1.Probe{c.ReadinessProbe, c.StartupProbe, c.LivenessProbe} {
		if probe == nil || probe.HTTPGet == nil {
			continue
		}
		get := probe.HTTPGet
		port := get.Port.IntValue()
		if get.Port.Type == intstr.String {
			for _, cp := range c.Ports {
				if cp.Name == get.Port.StrVal {
					port = int(cp.ContainerPort)
				}
			}
		}
		if port == 0 {
			return "", fmt.Errorf("%s: the probe's port %q is not among the container's", manifestPath(p.component), get.Port.String())
		}
		host := get.Host
		if host == "" { // the pod's address, which is the node's
			host = "127.0.0.1"
		}
		u, err := url.Parse(get.Path)
		if err != nil {
			return "", fmt.Errorf("%s: %w", manifestPath(p.component), err)
		}
		u.Scheme, u.Host = strings.ToLower(string(get.Scheme)), net.JoinHostPort(host, strconv.Itoa(port))
		if u.Scheme == "" {
			u.Scheme = "http"
		}
		return u.String(), nil
	}
	return "", fmt.Errorf("%s: no HTTP probe", manifestPath(p.component))
}

// imageVersion is the version in an image's tag, without what builders append
// to it (v1.36.3-eks.1, 3.6.8-0); nil where the tag is none.
func imageVersion(ref string) *version.Version {
	ref, _, _ = strings.Cut(ref, "@")
	_, tag, ok := strings.Cut(path.Base(ref), ":")
	if !ok {
		return nil
	}
	if v, err := version.ParseSemantic(tag); err == nil {
		for _, unstable := range []string{"alpha", "beta", "rc"} {
			if strings.HasPrefix(v.PreRelease(), unstable) {
				return v
			}
		}
	}
	v, err := version.ParseGeneric(tag)
	if err != nil {
		return nil
	}
	return version.MajorMinor(v.Major(), v.Minor()).WithPatch(v.Patch())
}

// running compares what the node's containerd runs with the manifests: a fact
// for each pod, Have and Want being equal where it runs at its image.
func running(ctx context.Context, env Env, pods []staticPod) ([]Fact, error) {
	client, err := env.Runtime(ctx)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	containers, err := client.Containers(ctx)
	if err != nil {
		return nil, err
	}
	facts := make([]Fact, 0, len(pods))
	for _, p := range pods {
		id, err := client.ImageID(ctx, p.image())
		if err != nil {
			return nil, err
		}
		f := Fact{Name: p.component + " runs", Have: p.runs(env.Node.Name, containers), Want: p.image()}
		if id != "" && f.Have == id {
			f.Have = f.Want
		}
		facts = append(facts, f)
	}
	return facts, nil
}

// runs is the image id of the pod's running container. While an old one has
// not ended yet, it counts: the pod is not yet at its new image.
func (p staticPod) runs(node string, containers []cri.Container) string {
	pod, id := p.pod.Name+"-"+node, ""
	for _, c := range containers {
		if c.Sandbox || c.Namespace != p.pod.Namespace || c.Pod != pod || c.Name != p.container().Name {
			continue
		}
		if id != "" && id != c.ImageID {
			return "two images at once: " + id + " and " + c.ImageID
		}
		id = c.ImageID
	}
	if id == "" {
		return "nothing"
	}
	return id
}

// healthy asks each pod's health endpoint: a fact for each.
func healthy(ctx context.Context, env Env, pods []staticPod) ([]Fact, error) {
	facts := make([]Fact, 0, len(pods))
	for _, p := range pods {
		endpoint, err := p.healthURL()
		if err != nil {
			return nil, err
		}
		f := Fact{Name: p.component + " " + endpoint, Have: "ok", Want: "ok"}
		if err := env.Probe(ctx, endpoint); err != nil {
			f.Have = err.Error()
		}
		facts = append(facts, f)
	}
	return facts, nil
}
