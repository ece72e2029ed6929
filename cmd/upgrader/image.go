package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/spf13/cobra"

	"github.com/node-upgrader/node-upgrader/image"
	"github.com/node-upgrader/node-upgrader/image/attach"
	"github.com/node-upgrader/node-upgrader/image/oci"
	"github.com/node-upgrader/node-upgrader/image/sbom"
	"github.com/node-upgrader/node-upgrader/image/trust"
	"github.com/node-upgrader/node-upgrader/steps"
)

// packFlags are those of bundle image.
type packFlags struct {
	bundles     []string
	upgraders   []string
	ref         string
	out         string
	compression string
	revision    string
	push        bool
	registry    registryFlags
	signKey     string
	sbom        bool
}

func newBundleImage() *cobra.Command {
	var f packFlags
	cmd := &cobra.Command{
		Use: "image --bundle DIR --ref NAME --out FILE", Short: "Make the container image, upgrader and bundle: an OCI archive, a layout, or pushed",
		Long: `Make the container image: FROM scratch, /upgrader and /bundle, one layer a
component, so that registries and nodes share what did not change. No Docker is
needed.

  --out FILE       an OCI archive, for ` + "`ctr -n k8s.io images import FILE`" + `
  --out oci:DIR    an OCI layout; other images in it stay
  --push           to the registry of --ref, with the usual Docker credentials

For several architectures give --bundle once for each, or a directory that holds
one bundle for each, and an --upgrader for each: the image is then an index.

The same input gives the same digest, which is printed; with --push as
REPOSITORY@DIGEST. The labels say that the image was made in
1970, or at the time in SOURCE_DATE_EPOCH.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(f.bundles) == 0 || f.ref == "" || f.out == "" && !f.push {
				return &steps.UsageError{Reason: "bundle image: --bundle DIR, --ref NAME and --out FILE or --push are needed"}
			}
			printed, err := f.make(cmd.Context())
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), printed)
			return err
		},
	}
	fs := cmd.Flags()
	fs.StringArrayVar(&f.bundles, "bundle", nil, "directory of a bundle, or one that holds a bundle for each architecture; may be repeated")
	fs.StringArrayVar(&f.upgraders, "upgrader", nil, "static upgrader binary for one of the architectures; may be repeated (default: this program)")
	fs.StringVar(&f.ref, "ref", "", "full name of the image, with tag")
	fs.StringVar(&f.out, "out", "", "archive to write, or oci:DIR")
	fs.StringVar(&f.compression, "compression", string(image.Zstd), "of the layers: zstd, gzip (for tools of before 2022), or none")
	fs.BoolVar(&f.push, "push", false, "push the image to the registry of --ref")
	f.registry.bind(fs)
	fs.StringVar(&f.revision, "revision", "", "commit of the source, for the labels; by default what Go has put into the upgrader")
	fs.StringVar(&f.signKey, "sign-key", "", "private key in PEM: the image is signed, as cosign finds it (see bundle sign)")
	fs.BoolVar(&f.sbom, "sbom", false, "attach an SBOM for each architecture, as cosign finds it (see bundle sbom)")
	return cmd
}

// make returns what is printed.
func (f packFlags) make(ctx context.Context) (_ string, err error) {
	tag, err := name.NewTag(f.ref, name.StrictValidation)
	if err != nil {
		return "", &steps.UsageError{Reason: fmt.Sprintf("--ref %q is not registry/repository:tag: %v", f.ref, err)}
	}
	out := f.place()
	o, err := f.options(out)
	if err != nil {
		return "", err
	}
	registries, err := f.registry.open()
	if err != nil {
		return "", err
	}
	attached, err := f.attachments(ctx, tag, o)
	if err != nil {
		return "", err
	}
	packed, err := image.Pack(ctx, o)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, packed.Close()) }()
	more, err := attach.To(packed.Manifest, attached)
	if err != nil {
		return "", err
	}
	all := append([]oci.Artifact{{Tag: tag.TagStr(), Name: f.ref, Manifest: packed.Manifest}}, more...)
	switch {
	case out.Layout:
		err = oci.WriteLayout(ctx, out.Path, all, nil)
	case out.Path != "":
		err = oci.WriteArchive(ctx, out.Path, all, nil)
	}
	if err != nil || !f.push {
		return packed.Digest, err
	}
	return tag.Context().Name() + "@" + packed.Digest, registries.Push(ctx, tag.Context(), append(more, all[0])...) // its tag last
}

// attachments are what the image gets beside it.
func (f packFlags) attachments(ctx context.Context, tag name.Tag, o image.PackOptions) (attach.Options, error) {
	a := attach.Options{Repository: tag.Context().Name(), SBOMs: map[string][]byte{}}
	if f.signKey != "" {
		var err error
		if a.Signer, err = trust.LoadSigner(f.signKey, askPassword); err != nil {
			return a, err
		}
	}
	if !f.sbom {
		return a, nil
	}
	for _, p := range o.Parts {
		data, err := sbom.Make(ctx, sbom.Options{Bundle: p.Bundle, Upgrader: p.Upgrader, Created: o.Created})
		if err != nil {
			return a, err
		}
		a.SBOMs[p.Bundle.Manifest.Architecture] = data
	}
	return a, nil
}

// place is where to: --out is never a registry.
func (f packFlags) place() oci.Place {
	if f.out == "" {
		return oci.Place{}
	}
	out, err := oci.ParsePlace(f.out)
	if err != nil || out.Path == "" {
		return oci.Place{Path: f.out}
	}
	return out
}

func (f packFlags) options(out oci.Place) (o image.PackOptions, err error) {
	if o.Compression, err = image.ParseCompression(f.compression); err != nil {
		return o, &steps.UsageError{Reason: "--" + err.Error()}
	}
	if o.Created, err = sourceDate(); err != nil {
		return o, err
	}
	o.Revision = f.revision
	if out.Path != "" { // where the image has to fit anyway
		o.Temp = filepath.Dir(filepath.Clean(out.Path))
	}
	bundles, err := f.openBundles()
	if err != nil {
		return o, err
	}
	for _, b := range bundles {
		exe, err := f.upgraderFor(b.Manifest.Architecture)
		if err != nil {
			return o, err
		}
		o.Parts = append(o.Parts, image.Part{Bundle: b, Upgrader: exe})
	}
	return o, nil
}

// openBundles opens every bundle that --bundle names or holds.
func (f packFlags) openBundles() ([]*image.Bundle, error) {
	var all []*image.Bundle
	for _, dir := range f.bundles {
		dirs := []string{dir}
		if _, err := os.Lstat(filepath.Join(dir, image.ManifestName)); errors.Is(err, os.ErrNotExist) {
			inside, err := filepath.Glob(filepath.Join(dir, "*", image.ManifestName))
			if err != nil {
				return nil, err
			}
			if len(inside) > 0 {
				dirs = dirs[:0]
			}
			for _, manifest := range inside {
				dirs = append(dirs, filepath.Dir(manifest))
			}
		}
		for _, d := range dirs {
			b, err := image.OpenAny(d)
			if err != nil {
				return nil, err
			}
			all = append(all, b)
		}
	}
	return all, nil
}

// upgraderFor is the executable among --upgrader for an architecture.
func (f packFlags) upgraderFor(arch string) (string, error) {
	list := f.upgraders
	if len(list) == 0 {
		list = []string{"/proc/self/exe"}
	}
	var found []string
	for _, exe := range list {
		a, err := image.Architecture(exe)
		if err != nil {
			return "", err
		}
		found = append(found, a)
	}
	i := slices.Index(found, arch)
	if i < 0 {
		return "", &steps.UsageError{Reason: fmt.Sprintf("the bundle for %s needs an --upgrader for it: what is given is for %v", arch, found)}
	}
	return list[i], nil
}

// sourceDate is SOURCE_DATE_EPOCH: https://reproducible-builds.org/specs/source-date-epoch/
func sourceDate() (time.Time, error) {
	text := os.Getenv("SOURCE_DATE_EPOCH")
	if text == "" {
		return time.Unix(0, 0), nil
	}
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil || seconds < 0 {
		return time.Time{}, &steps.UsageError{Reason: fmt.Sprintf("SOURCE_DATE_EPOCH=%q: want seconds since 1970", text)}
	}
	return time.Unix(seconds, 0), nil
}
