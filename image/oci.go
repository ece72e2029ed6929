package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// ArchiveOptions say what is packed.
type ArchiveOptions struct {
	Bundle   *Bundle
	Upgrader string // path of the executable for the bundle's architecture
	Ref      string // the image's full name: registry/repository:tag
	Out      string // the archive, replaced if it is there
	// Gzip compresses the layers at compress/gzip's default level (6), for
	// registries. Without it the archive is made and imported much faster.
	Gzip     bool
	Progress func(done, total int64)
}

// DigestLabel is the image's label with the bundle's digest.
const DigestLabel = "io.github.node-upgrader.bundle.digest"

// WriteArchive packs /upgrader and /bundle as an image from scratch, in a tar of
// an OCI layout that "ctr -n k8s.io images import" imports as Ref. One layer a
// component; the same input gives the same bytes (with Gzip: by the same Go
// version). It returns the image manifest's digest.
//
// Every file is hashed on its way: a wrong one is a *BadBundleError. Out is
// complete or as it was before, though not fsynced. Beside it, in a temporary
// directory, the archive's size is needed three times.
func WriteArchive(ctx context.Context, o ArchiveOptions) (digest string, err error) {
	digest, err = writeArchive(ctx, o)
	if err != nil {
		return "", fmt.Errorf("write image archive: %w", err)
	}
	return digest, nil
}

func writeArchive(ctx context.Context, o ArchiveOptions) (digest string, err error) {
	tag, err := name.NewTag(o.Ref, name.StrictValidation)
	if err != nil {
		return "", fmt.Errorf("image name %q is not registry/repository:tag: %w", o.Ref, err)
	}
	exe, err := openUpgrader(o.Upgrader)
	if err != nil {
		return "", err
	}
	defer exe.Close()
	arch := o.Bundle.Manifest.Architecture
	if err := checkELF(exe, arch); err != nil {
		return "", fmt.Errorf("the upgrader: %w", err)
	}
	if _, err := open(o.Bundle.Dir, arch); err != nil {
		return "", err
	}
	tmp, err := os.MkdirTemp(filepath.Dir(o.Out), ".image-")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()

	layers, err := writeLayers(ctx, o, exe, tmp)
	if err != nil {
		return "", err
	}
	img, err := assembleImage(o.Bundle, layers)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(tmp, "layout")
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return "", err
	}
	err = path.AppendImage(img,
		layout.WithPlatform(v1.Platform{OS: "linux", Architecture: arch}),
		// containerd takes the full name from its own annotation; the
		// standard's is for the tag.
		layout.WithAnnotations(map[string]string{
			"io.containerd.image.name":          o.Ref,
			"org.opencontainers.image.ref.name": tag.TagStr(),
		}))
	if err != nil {
		return "", err
	}
	archive := filepath.Join(tmp, "archive")
	if err := tarLayout(ctx, dir, archive); err != nil {
		return "", err
	}
	if err := os.Rename(archive, o.Out); err != nil {
		return "", err
	}
	hash, err := img.Digest()
	return hash.String(), err
}

func assembleImage(b *Bundle, layers []*fileLayer) (v1.Image, error) {
	epoch := v1.Time{Time: time.Unix(0, 0).UTC()}
	img := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	img = mutate.ConfigMediaType(img, types.OCIConfigJSON)
	for _, l := range layers {
		var err error
		img, err = mutate.Append(img, mutate.Addendum{
			Layer:   l,
			History: v1.History{Created: epoch, CreatedBy: l.what},
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
	config.Created = epoch
	config.OS, config.Architecture = "linux", b.Manifest.Architecture
	config.Config = v1.Config{
		Entrypoint: []string{"/upgrader"},
		WorkingDir: "/",
		Labels: map[string]string{
			"org.opencontainers.image.title":       "node-upgrader",
			"org.opencontainers.image.description": "Upgrades the Kubernetes components of the node it runs on, in place",
			"org.opencontainers.image.licenses":    "Apache-2.0",
			"org.opencontainers.image.source":      "https://github.com/node-upgrader/node-upgrader",
			"org.opencontainers.image.version":     b.Manifest.KubernetesVersion,
			DigestLabel:                            b.Digest,
		},
	}
	return mutate.ConfigFile(img, config)
}
