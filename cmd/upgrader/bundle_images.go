package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"github.com/node-upgrader/node-upgrader/image"
	"github.com/node-upgrader/node-upgrader/steps"
)

// imageFlags are those of `bundle build` for the control plane's images.
type imageFlags struct {
	images   bool
	list     string
	mirrors  []string
	registry registryFlags
	options  image.ContainerImageOptions
}

func (f *imageFlags) bind(fs *pflag.FlagSet) {
	fs.BoolVar(&f.images, "images", false, "bring the container images too that this version's kubeadm and containerd need")
	fs.StringVar(&f.list, "image-list", "", "with --images: file with the images' names, one a line, instead of asking kubeadm and containerd")
	fs.StringVar(&f.options.Repository, "image-repository", "", "with --images: private registry that kubeadm shall take the images from, instead of registry.k8s.io")
	fs.StringArrayVar(&f.options.From, "images-from", nil, "with --images: directory with archives of the images, instead of a registry")
	fs.StringArrayVar(&f.mirrors, "image-mirror", nil, "with --images: REGISTRY=REGISTRY/PATH, where a registry's images are fetched from; their names stay")
	f.registry.bind(fs)
}

// validate returns nil where no images are asked for.
func (f *imageFlags) validate() (*image.ContainerImageOptions, error) {
	if !f.images {
		if f.list != "" || f.options.Repository != "" || len(f.options.From) > 0 || len(f.mirrors) > 0 {
			return nil, &steps.UsageError{Reason: "bundle build: --image-list, --image-repository, --images-from and --image-mirror are for --images"}
		}
		return nil, nil //nolint:nilnil // none are asked for
	}
	o := f.options
	o.Registry = f.registry.options()
	if len(o.From) > 0 && len(f.mirrors) > 0 {
		return nil, &steps.UsageError{Reason: "bundle build: either --images-from or --image-mirror: with the first no registry is asked"}
	}
	for _, item := range f.mirrors {
		from, to, ok := strings.Cut(item, "=")
		if !ok || from == "" || to == "" {
			return nil, &steps.UsageError{Reason: fmt.Sprintf("--image-mirror %q: want REGISTRY=REGISTRY/PATH", item)}
		}
		if o.Mirrors == nil {
			o.Mirrors = map[string]string{}
		}
		o.Mirrors[from] = to
	}
	if f.list == "" {
		return &o, nil
	}
	if o.Repository != "" {
		return nil, &steps.UsageError{Reason: "bundle build: either --image-list, which has whole names, or --image-repository"}
	}
	data, err := os.ReadFile(f.list)
	if err != nil {
		return nil, err
	}
	if o.List = strings.Fields(string(data)); len(o.List) == 0 {
		return nil, &steps.UsageError{Reason: fmt.Sprintf("--image-list %s: names no image", f.list)}
	}
	return &o, nil
}

// printImages writes the names of a bundle's images, one a line.
func printImages(ctx context.Context, w io.Writer, b *image.Bundle) error {
	images, err := b.Images(ctx)
	if err != nil {
		return err
	}
	for _, i := range images {
		if _, err := fmt.Fprintln(w, i.Name); err != nil {
			return err
		}
	}
	return nil
}
