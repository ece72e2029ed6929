package image

import (
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sync/errgroup"

	"github.com/node-upgrader/node-upgrader/image/oci"
)

// Part is what an image has for one architecture.
type Part struct {
	Bundle   *Bundle
	Upgrader string // path of the executable for the bundle's architecture
}

// PackOptions say what is packed.
type PackOptions struct {
	Parts       []Part // one an architecture, all of one version of Kubernetes
	Compression Compression
	Created     time.Time // as the labels say it; zero: 1970
	Revision    string    // the source's commit; "": what Go has put into the upgrader
	// Temp is a directory for the layers, which need the image's size there.
	Temp     string
	Progress func(done, total int64)
}

// Packed is an image whose layers lie ready in temporary files.
type Packed struct {
	// Manifest is an image for one architecture, an index for several.
	Manifest oci.Manifest
	Digest   string // of Manifest
	dir      string
}

// Close removes the temporary files.
func (p *Packed) Close() error { return os.RemoveAll(p.dir) }

// Pack makes an image from scratch of /upgrader and /bundle, one layer a
// component. The same input gives the same digest. It is written, or pushed,
// with package oci; Close it then.
//
// Every file is hashed on its way: a wrong one is a *BadBundleError.
func Pack(ctx context.Context, o PackOptions) (*Packed, error) {
	p, err := pack(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("pack image: %w", err)
	}
	return p, nil
}

// part is a Part that was found good.
type part struct {
	*Bundle
	exe *upgraderFile
}

func pack(ctx context.Context, o PackOptions) (_ *Packed, err error) {
	parts, err := openParts(o.Parts)
	defer closeParts(parts)
	if err != nil {
		return nil, err
	}
	if o.Created.IsZero() {
		o.Created = time.Unix(0, 0)
	}
	dir, err := os.MkdirTemp(o.Temp, ".image-")
	if err != nil {
		return nil, err
	}
	packed := &Packed{dir: dir}
	defer func() {
		if err != nil {
			err = errors.Join(err, packed.Close())
		}
	}()
	images, err := packParts(ctx, o, parts, dir)
	if err != nil {
		return nil, err
	}
	if packed.Manifest, err = join(o, parts, images); err != nil {
		return nil, err
	}
	digest, err := packed.Manifest.Digest()
	packed.Digest = digest.String()
	return packed, err
}

// packParts packs all architectures' layers side by side.
func packParts(ctx context.Context, o PackOptions, parts []part, dir string) ([]v1.Image, error) {
	var total int64
	for _, p := range parts {
		total += p.Manifest.size() + p.exe.size()
	}
	count := newMeter(total, o.Progress)
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(workers())
	all := make([][]*fileLayer, len(parts))
	var err error
	for i, p := range parts {
		prefix := filepath.Join(dir, p.Manifest.Architecture+"-")
		if all[i], err = startLayers(gctx, g, p, o.Compression, prefix, count); err != nil {
			break
		}
	}
	if err := errors.Join(g.Wait(), err); err != nil {
		return nil, err
	}
	images := make([]v1.Image, len(parts))
	for i, p := range parts {
		if images[i], err = assembleImage(o, p, all[i]); err != nil {
			return nil, err
		}
	}
	return images, nil
}

// openParts sorts the parts by architecture and checks them.
func openParts(list []Part) (parts []part, err error) {
	if len(list) == 0 {
		return nil, errors.New("no bundle")
	}
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b Part) int {
		return strings.Compare(a.Bundle.Manifest.Architecture, b.Bundle.Manifest.Architecture)
	})
	first := list[0].Bundle.Manifest
	for i, p := range list {
		m := p.Bundle.Manifest
		if i > 0 && m.Architecture == list[i-1].Bundle.Manifest.Architecture {
			return parts, fmt.Errorf("two bundles for %s: %s and %s", m.Architecture, list[i-1].Bundle.Dir, p.Bundle.Dir)
		}
		if m.KubernetesVersion != first.KubernetesVersion {
			return parts, fmt.Errorf("the bundle for %s has Kubernetes %s, the one for %s has %s: an image is of one version",
				first.Architecture, first.KubernetesVersion, m.Architecture, m.KubernetesVersion)
		}
		exe, err := openUpgrader(p.Upgrader)
		if err != nil {
			return parts, err
		}
		parts = append(parts, part{p.Bundle, exe})
		if err := checkELF(exe, m.Architecture); err != nil {
			return parts, fmt.Errorf("the upgrader %s: %w", p.Upgrader, err)
		}
		if _, err := open(p.Bundle.Dir, m.Architecture); err != nil {
			return parts, err
		}
	}
	return parts, nil
}

func closeParts(parts []part) {
	for _, p := range parts {
		_ = p.exe.Close()
	}
}

// join makes one image of those of the architectures.
func join(o PackOptions, parts []part, images []v1.Image) (oci.Manifest, error) {
	if len(images) == 1 {
		return images[0], nil
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for i, img := range images {
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{
			Platform: &v1.Platform{OS: "linux", Architecture: parts[i].Manifest.Architecture},
		}})
	}
	annotated, ok := mutate.Annotations(index, labels(o, parts[0])).(v1.ImageIndex)
	if !ok {
		return nil, errors.New("annotate the index")
	}
	return annotated, nil
}

func assembleImage(o PackOptions, p part, layers []*fileLayer) (v1.Image, error) {
	created := v1.Time{Time: o.Created.UTC()}
	img := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	img = mutate.ConfigMediaType(img, types.OCIConfigJSON)
	for _, l := range layers {
		var err error
		img, err = mutate.Append(img, mutate.Addendum{
			Layer:     l,
			MediaType: l.compression.mediaType(),
			History:   v1.History{Created: created, CreatedBy: l.what},
		})
		if err != nil {
			return nil, err
		}
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.Created = created
	config.OS, config.Architecture = "linux", p.Manifest.Architecture
	own := labels(o, p)
	own[DigestLabel] = p.Digest
	config.Config = v1.Config{
		Entrypoint: []string{"/upgrader"},
		User:       "0:0", // entering the host's namespaces takes root
		WorkingDir: "/",
		Labels:     own,
	}
	if img, err = mutate.ConfigFile(img, config); err != nil {
		return nil, err
	}
	annotated, ok := mutate.Annotations(img, own).(v1.Image)
	if !ok {
		return nil, errors.New("annotate the image")
	}
	return annotated, nil
}

// revision is the commit that an executable was built from, as Go's build
// information has it; "" where it has none.
func revision(exe *upgraderFile) string {
	info, err := buildinfo.Read(exe)
	if err != nil {
		return ""
	}
	var commit, modified string
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			commit = s.Value
		case "vcs.modified":
			modified = s.Value
		}
	}
	if commit != "" && modified == "true" {
		commit += "-dirty"
	}
	return commit
}
