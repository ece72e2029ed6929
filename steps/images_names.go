package steps

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/node-upgrader/node-upgrader/hostexec"
	"github.com/node-upgrader/node-upgrader/image"
	"github.com/node-upgrader/node-upgrader/steps/cri"
)

// neededImages are the names that the new version will ask for on this node, by
// the cluster's own configuration: its registry, its etcd, its add-ons; as CRI
// has them. A worker may run kube-proxy and CoreDNS, and upgrades without them: a
// cluster may have something else in their place, and the kubelet may pull what
// nobody else can, with the pods' own credentials.
func neededImages(ctx context.Context, env Env, daemon containerdDaemon) ([]imageNeed, error) {
	kubeadm, err := program(ctx, env, image.Kubeadm, "kubeadm")
	if err != nil {
		return nil, err
	}
	config, args := imagesConfig(ctx, env)
	var out hostexec.Output
	if config != nil {
		out, err = askAbout(ctx, env.Host, strings.NewReader(string(config)), kubeadm, "config", "images", "list", "--config", "/dev/stdin")
	} else {
		out, err = ask(ctx, env.Host, append([]string{kubeadm, "config", "images", "list"}, args...)...)
	}
	if err != nil {
		return nil, err
	}
	var needs []imageNeed
	for name := range strings.FieldsSeq(string(out.Stdout)) {
		component, _, _ := strings.Cut(path.Base(name), ":")
		worker := env.Node.Role == Worker
		if !worker || component == "kube-proxy" || component == "coredns" {
			needs = append(needs, imageNeed{name: cri.ImageName(name), optional: worker})
		}
	}
	sandbox, err := newSandboxImage(ctx, env, daemon)
	if err != nil {
		return nil, err
	}
	if sandbox != "" {
		name := cri.ImageName(sandbox)
		needs = slices.DeleteFunc(needs, func(n imageNeed) bool { return n.name == name })
		needs = append(needs, imageNeed{name: name})
	}
	slices.SortFunc(needs, func(a, b imageNeed) int { return strings.Compare(a.name, b.name) })
	return slices.CompactFunc(needs, func(a, b imageNeed) bool { return a.name == b.name }), nil
}

// imagesConfig is the cluster's configuration at the new version. Where the API
// server does not answer, args say what is known without it: the repository that
// the control plane on this node runs from.
func imagesConfig(ctx context.Context, env Env) (config []byte, args []string) {
	target := env.Bundle.Manifest.KubernetesVersion
	var text string
	client, _, err := reachAPI(ctx, env, apiLook)
	if err == nil {
		text, err = clusterConfig(ctx, client)
	}
	if err == nil {
		if config, err = atVersion(text, target); err == nil {
			return config, nil
		}
	}
	env.Log.Debug("the cluster's configuration cannot be read, taking the images' default names", "reason", err.Error())
	args = []string{"--kubernetes-version", target}
	pods, err := staticPods(env.Host.FS)
	if i := slices.IndexFunc(pods, func(p staticPod) bool { return p.component == "kube-apiserver" }); err == nil && i >= 0 {
		if repository, _, ok := strings.Cut(pods[i].image(), "/kube-apiserver"); ok {
			args = append(args, "--image-repository", repository)
		}
	}
	return nil, args
}

// atVersion is a ClusterConfiguration with another version of Kubernetes.
func atVersion(config, version string) ([]byte, error) {
	var all map[string]any
	if err := yaml.Unmarshal([]byte(config), &all); err != nil {
		return nil, fmt.Errorf("read kubeadm-config: %w", err)
	}
	if all["kind"] != "ClusterConfiguration" {
		return nil, errors.New("read kubeadm-config: it has no ClusterConfiguration")
	}
	all["kubernetesVersion"] = version
	return yaml.Marshal(all)
}

// newSandboxImage is what the new containerd makes pods with, by the node's own
// configuration. One that it does not accept is for its own step to refuse.
func newSandboxImage(ctx context.Context, env Env, daemon containerdDaemon) (string, error) {
	binary, err := program(ctx, env, image.Containerd, "containerd")
	if err != nil {
		return "", err
	}
	config, err := dumpConfig(ctx, env.Host, binary, daemon.config)
	var refused *hostexec.CommandError
	if errors.As(err, &refused) && ctx.Err() == nil {
		return "", nil
	}
	return config.sandboxImage(), err
}

// changedSandbox is the new containerd's sandbox image where the installed one,
// of this configuration, makes pods with another.
func changedSandbox(ctx context.Context, env Env, daemon containerdDaemon, installed containerdConfig) ([]imageNeed, error) {
	name, err := newSandboxImage(ctx, env, daemon)
	if err != nil || name == "" || name == installed.sandboxImage() {
		return nil, err
	}
	return []imageNeed{{name: cri.ImageName(name)}}, nil
}

// snapshotter is what unpacks the images of pods.
func (c containerdConfig) snapshotter() string {
	for _, t := range []table{c.root.table("plugins", criImages), c.cri().table("containerd")} {
		if s := t.text("snapshotter"); s != "" {
			return s
		}
	}
	return "overlayfs"
}

// rootDir is where containerd has what outlives the boot.
func (c containerdConfig) rootDir() string {
	if s := c.root.text("root"); s != "" {
		return s
	}
	return "/var/lib/containerd"
}
