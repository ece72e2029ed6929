package oci

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// blob opens a blob whose bytes are compared with the descriptor on the way.
func (l *Layout) blob(d v1.Descriptor) (io.ReadCloser, error) {
	r, size, err := l.files.open(blobName(d.Digest))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, bad("blob %s is missing", d.Digest)
	case err != nil:
		return nil, err
	case size != d.Size:
		_ = r.Close()
		return nil, bad("blob %s has %d bytes instead of %d", d.Digest, size, d.Size)
	}
	return newChecked(r, d), nil
}

// small reads a blob that is held in memory.
func (l *Layout) small(d v1.Descriptor) ([]byte, error) {
	if d.Size > maxManifest {
		return nil, bad("blob %s is larger than %d MiB", d.Digest, maxManifest>>20)
	}
	r, err := l.blob(d)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r)
}

// manifest reads the manifest of a descriptor.
func (l *Layout) manifest(d v1.Descriptor) (Manifest, error) {
	raw, err := l.small(d)
	if err != nil {
		return nil, err
	}
	switch {
	case d.MediaType.IsIndex():
		var list v1.IndexManifest
		if err := decodeManifest(raw, d, &list, &list.SchemaVersion, &list.MediaType); err != nil {
			return nil, err
		}
		if err := checkDescriptors(d.Digest.String(), list.Manifests); err != nil {
			return nil, err
		}
		return &storedIndex{layout: l, desc: d, raw: raw, list: list}, nil
	case d.MediaType.IsImage():
		var m v1.Manifest
		if err := decodeManifest(raw, d, &m, &m.SchemaVersion, &m.MediaType); err != nil {
			return nil, err
		}
		if err := checkDescriptors(d.Digest.String(), append([]v1.Descriptor{m.Config}, m.Layers...)); err != nil {
			return nil, err
		}
		return partial.CompressedToImage(&storedImage{layout: l, desc: d, raw: raw, manifest: m})
	default:
		return nil, bad("%s is neither an image nor an index but %q", d.Digest, d.MediaType)
	}
}

// decodeManifest checks what the schema says of itself: one that is read as an
// index here and as an image elsewhere would be two things with one digest.
func decodeManifest(raw []byte, d v1.Descriptor, into any, schema *int64, mediaType *types.MediaType) error {
	if err := json.NewDecoder(bytes.NewReader(raw)).Decode(into); err != nil {
		return bad("manifest %s: %v", d.Digest, err)
	}
	if *schema != 2 {
		return bad("manifest %s: schema version %d instead of 2", d.Digest, *schema)
	}
	if *mediaType != "" && *mediaType != d.MediaType {
		return bad("manifest %s says that it is %q, and is listed as %q", d.Digest, *mediaType, d.MediaType)
	}
	return nil
}

// checkDescriptors checks what a manifest refers to.
func checkDescriptors(in string, list []v1.Descriptor) error {
	if len(list) > maxDescriptors {
		return bad("%s refers to %d blobs, more than %d", in, len(list), maxDescriptors)
	}
	for _, d := range list {
		if d.Digest.Algorithm != "sha256" || len(d.Digest.Hex) != 64 {
			return bad("%s refers to a blob by %q, which is no sha256", in, d.Digest)
		}
		if d.Size < 0 {
			return bad("%s: blob %s has a negative size", in, d.Digest)
		}
	}
	return nil
}

// storedIndex is a v1.ImageIndex of a layout.
type storedIndex struct {
	layout *Layout
	desc   v1.Descriptor
	raw    []byte
	list   v1.IndexManifest
}

func (i *storedIndex) MediaType() (types.MediaType, error)       { return i.desc.MediaType, nil }
func (i *storedIndex) Digest() (v1.Hash, error)                  { return i.desc.Digest, nil }
func (i *storedIndex) Size() (int64, error)                      { return i.desc.Size, nil }
func (i *storedIndex) RawManifest() ([]byte, error)              { return i.raw, nil }
func (i *storedIndex) IndexManifest() (*v1.IndexManifest, error) { return i.list.DeepCopy(), nil }

func (i *storedIndex) Image(h v1.Hash) (v1.Image, error) {
	m, err := i.child(h)
	if err != nil {
		return nil, err
	}
	img, ok := m.(v1.Image)
	if !ok {
		return nil, fmt.Errorf("%s is not an image", h)
	}
	return img, nil
}

func (i *storedIndex) ImageIndex(h v1.Hash) (v1.ImageIndex, error) {
	m, err := i.child(h)
	if err != nil {
		return nil, err
	}
	index, ok := m.(v1.ImageIndex)
	if !ok {
		return nil, fmt.Errorf("%s is not an index", h)
	}
	return index, nil
}

func (i *storedIndex) child(h v1.Hash) (Manifest, error) {
	for _, d := range i.list.Manifests {
		if d.Digest == h {
			return i.layout.manifest(d)
		}
	}
	return nil, fmt.Errorf("%s in %s: %w", h, i.desc.Digest, ErrNotFound)
}

// storedImage is the core of a v1.Image of a layout.
type storedImage struct {
	layout   *Layout
	desc     v1.Descriptor
	raw      []byte
	manifest v1.Manifest

	once   sync.Once
	config []byte
	err    error
}

func (i *storedImage) MediaType() (types.MediaType, error) { return i.desc.MediaType, nil }
func (i *storedImage) RawManifest() ([]byte, error)        { return i.raw, nil }

func (i *storedImage) RawConfigFile() ([]byte, error) {
	i.once.Do(func() { i.config, i.err = i.layout.small(i.manifest.Config) })
	return i.config, i.err
}

func (i *storedImage) LayerByDigest(h v1.Hash) (partial.CompressedLayer, error) {
	for _, d := range append([]v1.Descriptor{i.manifest.Config}, i.manifest.Layers...) {
		if d.Digest == h {
			return storedLayer{i.layout, d}, nil
		}
	}
	return nil, fmt.Errorf("layer %s in %s: %w", h, i.desc.Digest, ErrNotFound)
}

// storedLayer is a layer of a layout.
type storedLayer struct {
	layout *Layout
	desc   v1.Descriptor
}

func (l storedLayer) Digest() (v1.Hash, error)            { return l.desc.Digest, nil }
func (l storedLayer) Size() (int64, error)                { return l.desc.Size, nil }
func (l storedLayer) MediaType() (types.MediaType, error) { return l.desc.MediaType, nil }
func (l storedLayer) Compressed() (io.ReadCloser, error)  { return l.layout.blob(l.desc) }
func (l storedLayer) Descriptor() (*v1.Descriptor, error) { return l.desc.DeepCopy(), nil }
