package components

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// binaries finds a built binary's path by its name.
type binaries map[string]string

// imageList asks kubeadm for the images of a set, and checks that the table of
// versions says the same.
func imageList(ctx context.Context, kubeadm string, s Set) ([]string, error) {
	cmd := exec.CommandContext(ctx, kubeadm, "config", "images", "list", "--kubernetes-version", "v"+s.Kubernetes)
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", strings.Join(cmd.Args, " "), err)
	}
	refs := strings.Fields(string(out))
	for _, want := range []string{"coredns:v" + s.CoreDNS, "etcd:" + s.Etcd + "-0", "pause:" + s.Pause} {
		if !slices.ContainsFunc(refs, func(ref string) bool { return strings.HasSuffix(ref, "/"+want) }) {
			return nil, fmt.Errorf("the table of versions has %s for Kubernetes %s, and its kubeadm asks for %s", want, s.Kubernetes, strings.Join(refs, ", "))
		}
	}
	return refs, nil
}

// imageFor says what is in the image that kubeadm calls ref.
func imageFor(ref string, bin binaries, proxyRoot string) (image, error) {
	name, tag := splitRef(ref)
	im := image{
		ref:    ref,
		env:    []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
		labels: map[string]string{"org.opencontainers.image.title": name, "org.opencontainers.image.version": tag},
	}
	at := func(dir string, names ...string) {
		im.entrypoint = []string{dir + names[0]}
		layer := layer{directory("tmp", 0o1777)}
		for _, n := range names {
			layer = append(layer, fromFile(strings.TrimPrefix(dir, "/")+n, bin[n]))
		}
		im.layers = append(im.layers, layer)
	}
	switch name {
	case "kube-apiserver", "kube-controller-manager", "kube-scheduler":
		at("/usr/local/bin/", name)
	case "kube-proxy":
		tree, err := fromTree(proxyRoot)
		if err != nil {
			return image{}, err
		}
		im.layers = append(im.layers, append(tree, directory("run", 0o755), fromFile("usr/sbin/"+iptablesVariant, bin[iptablesVariant])))
		at("/usr/local/bin/", name)
	case "etcd":
		at("/usr/local/bin/", "etcd", "etcdctl")
	case "coredns":
		at("/", name)
	case "pause":
		at("/", name)
		im.user = "65535:65535"
	default:
		return image{}, fmt.Errorf("kubeadm asks for the image %s, which nobody here knows how to make", ref)
	}
	for _, layer := range im.layers {
		for _, f := range layer {
			if f.mode.IsRegular() && f.from == "" {
				return image{}, fmt.Errorf("image %s: no binary for /%s", ref, f.path)
			}
		}
	}
	return im, nil
}

// splitRef splits registry.k8s.io/coredns/coredns:v1.2.3 into coredns and v1.2.3.
func splitRef(ref string) (name, tag string) {
	name, tag, _ = strings.Cut(filepath.Base(ref), ":")
	return name, tag
}

// archiveName is the file name of an image's archive.
func archiveName(ref string) string {
	name, tag := splitRef(ref)
	return name + "_" + tag + ".tar"
}
