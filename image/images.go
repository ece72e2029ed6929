package image

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// Where the OCI layout with the images is in a bundle.
const (
	imagesLayout = Images + "/oci-layout"
	imagesIndex  = Images + "/index.json"
	imagesBlobs  = Images + "/blobs/sha256/"
)

// nameAnnotation is where containerd looks for an image's whole name; refAnnotation
// is the standard's, in which skopeo and others look.
const (
	nameAnnotation = "io.containerd.image.name"
	refAnnotation  = "org.opencontainers.image.ref.name"
)

// maxImageJSON bounds a manifest, an index and a configuration of an image.
const maxImageJSON = 8 << 20

// ContainerImage is an image that a bundle brings for the node's containerd, for
// the bundle's platform.
type ContainerImage struct {
	// Name is the whole name, as kubeadm asks for it: registry/repository:tag.
	Name string
	// Target is what the name stands for in the registry: an index, of which the
	// bundle has the one manifest of its platform, or a manifest.
	Target v1.Descriptor
	// ID is the digest of the configuration, "sha256:…": what CRI calls the
	// image's id. It is the same however the image came to a node.
	ID string
	// Blobs are all that it is made of, each after those that it refers to.
	Blobs []Blob
}

// Blob is a part of an image, a file of the bundle.
type Blob struct {
	File
	MediaType string
	Children  []string // the digests, "sha256:…", of the blobs that it refers to
}

// Digest is the blob's name everywhere.
func (b Blob) Digest() string { return "sha256:" + b.SHA256 }

// Size is what the image's blobs weigh together.
func (i ContainerImage) Size() int64 {
	var sum int64
	for _, b := range i.Blobs {
		sum += b.Size
	}
	return sum
}

// Images are the images of a bundle, sorted by name; none where it was built
// without. The layout's index and each image's manifests and configuration are
// read and compared with bundle.json, the layers are not: hash what you read. An
// image that is not whole, is for another platform or has a name that is none,
// and a blob that is no image's, is a *BadBundleError.
func (b *Bundle) Images(ctx context.Context) ([]ContainerImage, error) {
	if b.Version(Images) == "" {
		return nil, nil
	}
	r := layoutReader{ctx: ctx, bundle: b, files: map[string]File{}, used: map[string]bool{imagesIndex: true, imagesLayout: true}}
	for _, f := range b.ComponentFiles(Images) {
		r.files[f.Path] = f
	}
	images, err := r.images()
	if err != nil {
		return nil, fmt.Errorf("read the bundle's images: %w", err)
	}
	return images, nil
}

// layoutReader walks the layout from its index.
type layoutReader struct {
	ctx    context.Context
	bundle *Bundle
	files  map[string]File // by path
	used   map[string]bool // paths
}

func (r layoutReader) images() ([]ContainerImage, error) {
	var layout struct {
		Version string `json:"imageLayoutVersion"`
	}
	if err := r.json(imagesLayout, &layout); err != nil {
		return nil, err
	}
	if layout.Version != "1.0.0" {
		return nil, badFile(imagesLayout, fmt.Sprintf("has the version %q, not 1.0.0", layout.Version))
	}
	var index v1.IndexManifest
	if err := r.json(imagesIndex, &index); err != nil {
		return nil, err
	}
	var images []ContainerImage
	for _, d := range index.Manifests {
		image, err := r.image(d)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(images, func(i ContainerImage) bool { return i.Name == image.Name }) {
			return nil, badFile(imagesIndex, "has the image "+image.Name+" twice")
		}
		images = append(images, image)
	}
	if len(images) == 0 {
		return nil, badFile(imagesIndex, "names no image")
	}
	for path := range r.files {
		if !r.used[path] {
			return nil, badFile(path, "is no part of an image")
		}
	}
	slices.SortFunc(images, func(a, b ContainerImage) int { return bytes.Compare([]byte(a.Name), []byte(b.Name)) })
	return images, nil
}

func (r layoutReader) image(d v1.Descriptor) (ContainerImage, error) {
	image := ContainerImage{Name: d.Annotations[nameAnnotation], Target: bare(d)}
	if tag, err := name.NewTag(image.Name, name.StrictValidation); err != nil || tag.Name() != image.Name {
		return image, badFile(imagesIndex, fmt.Sprintf("has an image with the name %q, not registry/repository:tag", printable(image.Name)))
	}
	manifest := image.Target
	var index *Blob
	if d.MediaType.IsIndex() {
		blob, err := r.blob(d)
		if err != nil {
			return image, err
		}
		var list v1.IndexManifest
		if err := r.json(blob.Path, &list); err != nil {
			return image, err
		}
		i := slices.IndexFunc(list.Manifests, func(m v1.Descriptor) bool {
			return fitsPlatform(m, r.bundle.Manifest.Architecture) && r.has(m)
		})
		if i < 0 {
			return image, badFile(blob.Path, "is an index of "+image.Name+" without a manifest for linux/"+r.bundle.Manifest.Architecture+" in this bundle")
		}
		manifest, index = bare(list.Manifests[i]), &blob
		index.Children = []string{manifest.Digest.String()}
	}
	if err := r.manifest(&image, manifest); err != nil {
		return image, err
	}
	if index != nil {
		image.Blobs = append(image.Blobs, *index)
	}
	return image, nil
}

// manifest adds a manifest and all that it refers to.
func (r layoutReader) manifest(image *ContainerImage, d v1.Descriptor) error {
	if !d.MediaType.IsImage() {
		return badFile(imagesIndex, fmt.Sprintf("has %s as %q, which is no image's manifest", image.Name, printable(string(d.MediaType))))
	}
	blob, err := r.blob(d)
	if err != nil {
		return err
	}
	var m v1.Manifest
	if err := r.json(blob.Path, &m); err != nil {
		return err
	}
	image.ID = m.Config.Digest.String()
	for _, part := range append(slices.Clone(m.Layers), m.Config) {
		child, err := r.blob(part)
		if err != nil {
			return err
		}
		image.Blobs = append(image.Blobs, child)
		blob.Children = append(blob.Children, child.Digest())
	}
	image.Blobs = append(image.Blobs, blob)
	var config v1.ConfigFile
	if err := r.json(imagesBlobs+m.Config.Digest.Hex, &config); err != nil {
		return err
	}
	switch {
	case config.OS != "linux" || config.Architecture != r.bundle.Manifest.Architecture:
		return badFile(blob.Path, fmt.Sprintf("is the image %s for %s/%s, in a bundle for linux/%s", image.Name,
			printable(config.OS), printable(config.Architecture), r.bundle.Manifest.Architecture))
	case len(config.RootFS.DiffIDs) != len(m.Layers):
		return badFile(blob.Path, fmt.Sprintf("is the image %s with %d layers, and its configuration has %d", image.Name, len(m.Layers), len(config.RootFS.DiffIDs)))
	}
	return nil
}

// bare is a descriptor without what is not the content's own.
func bare(d v1.Descriptor) v1.Descriptor {
	return v1.Descriptor{MediaType: d.MediaType, Size: d.Size, Digest: d.Digest}
}

// fitsPlatform tells whether a manifest in an index is an image for linux on the
// architecture, and not what is known about one, which has no platform.
func fitsPlatform(d v1.Descriptor, arch string) bool {
	return d.MediaType.IsImage() && d.Platform != nil && d.Platform.OS == "linux" && d.Platform.Architecture == arch
}

func (r layoutReader) has(d v1.Descriptor) bool {
	f, ok := r.files[imagesBlobs+d.Digest.Hex]
	return ok && d.Digest.Algorithm == "sha256" && f.Size == d.Size
}

func (r layoutReader) blob(d v1.Descriptor) (Blob, error) {
	if !r.has(d) {
		return Blob{}, badFile(imagesBlobs+printable(d.Digest.Hex), fmt.Sprintf("is not in the bundle with %d bytes, and part of an image", d.Size))
	}
	f := r.files[imagesBlobs+d.Digest.Hex]
	r.used[f.Path] = true
	return Blob{File: f, MediaType: string(d.MediaType)}, nil
}

// json reads a file of the layout and compares it with bundle.json.
func (r layoutReader) json(path string, v any) error {
	f, ok := r.files[path]
	if !ok {
		return badFile(path, "is missing")
	}
	if f.Size > maxImageJSON {
		return badFile(path, fmt.Sprintf("is larger than %d MiB", maxImageJSON>>20))
	}
	src, err := r.bundle.OpenFile(f)
	if err != nil {
		return err
	}
	defer src.Close()
	data, err := io.ReadAll(newCheckedReader(r.ctx, src, f, nil))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, v); err != nil {
		return badFile(path, "cannot be read: "+printable(err.Error()))
	}
	return nil
}

// ReadBlob opens a blob for reading. Instead of io.EOF its reader returns a
// *BadBundleError when the bytes were not bundle.json's. Its Close has to be
// called.
func (b *Bundle) ReadBlob(ctx context.Context, blob Blob) (io.ReadCloser, error) {
	src, err := b.OpenFile(blob.File)
	if err != nil {
		return nil, err
	}
	return readCloser{newCheckedReader(ctx, src, blob.File, nil), src}, nil
}
