package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/node-upgrader/node-upgrader/image"
	"github.com/node-upgrader/node-upgrader/image/oci"
	"github.com/node-upgrader/node-upgrader/test/components"
	"github.com/node-upgrader/node-upgrader/test/figures"
	"github.com/node-upgrader/node-upgrader/test/payload"
	"github.com/node-upgrader/node-upgrader/test/registry"
)

// images measures what of an image is pulled for a patch of Kubernetes, and what
// it weighs beside its components.
//
// There is one patch version of each minor in the cache, so the patch is made up:
// the older image has the kubeadm, kubelet and kubectl of 1.35 and everything else
// of 1.36. As in a real patch only Kubernetes' own programs differ, and their
// layers have about the size that a patch's have; a layer is pulled as a whole,
// however little of it differs. Both images go to a registry, the older one is
// pulled into an OCI layout, and then the newer one: what the registry has sent
// for it is what counts, by its log.
func images(ctx context.Context) (err error) {
	fmt.Println("== images: a patch upgrade's pull, and the weight beside the components")
	dir, err := os.MkdirTemp("", "upgrader-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	p, err := payload.Make(ctx, to, dir, os.Stdout)
	if err != nil {
		return err
	}
	older, err := olderSet(ctx, dir)
	if err != nil {
		return err
	}
	old := p
	old.Bundle = filepath.Join(dir, "bundle-older")
	if err := tool(ctx, p.Upgrader, nil, "bundle", "build", "--from", older, "--out", old.Bundle); err != nil {
		return err
	}
	r, err := registry.Start(ctx, registry.Options{Dir: filepath.Join(dir, "registry"), Progress: os.Stdout})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	c := client{r, dir, p.Upgrader}
	var pulled [2]int64
	for i, what := range []payload.Payload{old, p} {
		tag := []string{"older", "newer"}[i]
		if err := c.run(ctx, "bundle", "image", "--bundle", what.Bundle, "--upgrader", p.Upgrader,
			"--ref", r.Host+"/upgrader:"+tag, "--registry-ca", r.CA, "--push"); err != nil {
			return err
		}
	}
	for i, tag := range []string{"older", "newer"} {
		if pulled[i], err = c.pull(ctx, tag); err != nil {
			return err
		}
	}
	whole, parts, err := weigh(filepath.Join(dir, "node"), p)
	if err != nil {
		return err
	}
	fmt.Printf("image %.1f MB, of it pulled after the older one %.1f MB; its components %.1f MB\n",
		mb(whole), mb(pulled[1]), mb(parts))
	return put(
		figures.Info("image_mb", mb(whole), "MB"),
		figures.Info("patch_pull_mb", mb(pulled[1]), "MB"),
		// Kubernetes' programs are most of an image: see the rows above it.
		figures.Info("patch_pull_ratio", float64(pulled[1])/float64(whole), "ratio"),
		figures.AtMost("image_overhead_mb", mb(whole-parts), "MB", 30),
	)
}

func mb(n int64) float64 { return float64(n) / 1e6 }

// olderSet is a directory of components with 1.35's Kubernetes and the rest of
// 1.36.
func olderSet(ctx context.Context, dir string) (string, error) {
	var bins [2]string
	var cni string
	for i, name := range []string{from, to} {
		set, err := components.Lookup(name)
		if err != nil {
			return "", err
		}
		built, err := components.Build(ctx, set, os.Stdout)
		if err != nil {
			return "", err
		}
		bins[i], cni = built.Bin, built.CNI
	}
	older := filepath.Join(dir, "older")
	if err := os.MkdirAll(filepath.Join(older, "bin"), 0o755); err != nil {
		return "", err
	}
	err := os.Symlink(cni, filepath.Join(older, "cni"))
	for _, name := range []string{"containerd", "containerd-shim-runc-v2", "ctr", "runc", "kubeadm", "kubelet", "kubectl"} {
		bin := bins[1]
		if strings.HasPrefix(name, "kube") {
			bin = bins[0]
		}
		err = errors.Join(err, os.Symlink(filepath.Join(bin, name), filepath.Join(older, "bin", name)))
	}
	return older, err
}

// client is the upgrader's program, logged in at a registry.
type client struct {
	registry *registry.Registry
	dir      string
	upgrader string
}

func (c client) run(ctx context.Context, args ...string) error {
	return tool(ctx, c.upgrader, []string{"DOCKER_CONFIG=" + c.registry.DockerConfig, "HOME=" + c.dir}, args...)
}

// pull mirrors an image into the layout that stands for the node, and returns
// how many bytes of blobs the registry has sent.
func (c client) pull(ctx context.Context, tag string) (int64, error) {
	before, err := c.registry.Requests()
	if err != nil {
		return 0, err
	}
	if err := c.run(ctx, "mirror", c.registry.Host+"/upgrader:"+tag, "oci:"+filepath.Join(c.dir, "node"), "--registry-ca", c.registry.CA); err != nil {
		return 0, err
	}
	after, err := c.registry.Requests()
	if err != nil {
		return 0, err
	}
	n, _ := registry.Pulled(after[len(before):])
	return n, nil
}

func tool(ctx context.Context, name string, env []string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s %s: %w", filepath.Base(name), strings.Join(args, " "), err)
	}
	return nil
}

// weigh returns what the newer image weighs, and what of that is its components:
// the first layers. The upgrader, the manifest and the configuration are beside
// them.
func weigh(node string, p payload.Payload) (whole, components int64, err error) {
	l, err := oci.Open(node)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	a, err := l.Find("newer")
	if err != nil {
		return 0, 0, err
	}
	img, ok := a.Manifest.(v1.Image)
	if !ok {
		return 0, 0, errors.New("the image is an index")
	}
	m, err := img.Manifest()
	if err != nil {
		return 0, 0, err
	}
	b, err := image.Open(p.Bundle)
	if err != nil {
		return 0, 0, err
	}
	whole = m.Config.Size
	for i, layer := range m.Layers {
		whole += layer.Size
		if i < len(b.Manifest.Components) {
			components += layer.Size
		}
	}
	return whole, components, nil
}
