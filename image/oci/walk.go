package oci

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// Bounds of what is read. The upgrader's own image has about ten layers.
const (
	maxManifest    = 4 << 20 // bytes of a manifest, a configuration or index.json; registries take no more
	maxDescriptors = 1000    // in one manifest
	maxDepth       = 4       // indexes in indexes
	maxBlobs       = 10_000  // of an artifact, and files of an archive
)

// blob is a piece of content under its digest.
type blob struct {
	digest v1.Hash
	size   int64
	open   func() (io.ReadCloser, error)
}

// blobs tells visit every blob of m once, what a manifest refers to before the
// manifest itself.
func blobs(m Manifest, visit func(blob) error) error {
	w := walker{visit: visit, seen: map[v1.Hash]bool{}}
	return w.manifest(m, 0)
}

type walker struct {
	visit func(blob) error
	seen  map[v1.Hash]bool
}

func (w *walker) manifest(m Manifest, depth int) error {
	digest, err := m.Digest()
	if err != nil || w.seen[digest] {
		return err
	}
	if depth > maxDepth {
		return fmt.Errorf("%s: indexes are nested more than %d deep", digest, maxDepth)
	}
	switch m := m.(type) {
	case v1.ImageIndex:
		err = w.children(m, depth)
	case v1.Image:
		err = w.contents(m)
	default:
		err = errors.New("neither an image nor an index")
	}
	if err != nil {
		return fmt.Errorf("%s: %w", digest, err)
	}
	return w.bytes(digest, m.RawManifest)
}

func (w *walker) children(index v1.ImageIndex, depth int) error {
	list, err := index.IndexManifest()
	if err != nil {
		return err
	}
	for _, d := range list.Manifests {
		m, err := child(index, d)
		if err != nil {
			return err
		}
		if err := w.manifest(m, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// child is a manifest of an index.
func child(index v1.ImageIndex, d v1.Descriptor) (Manifest, error) {
	switch {
	case d.MediaType.IsIndex():
		return index.ImageIndex(d.Digest)
	case d.MediaType.IsImage():
		return index.Image(d.Digest)
	default:
		return nil, fmt.Errorf("%s is neither an image nor an index but %q", d.Digest, d.MediaType)
	}
}

func (w *walker) contents(img v1.Image) error {
	config, err := img.ConfigName()
	if err != nil {
		return err
	}
	if err := w.bytes(config, img.RawConfigFile); err != nil {
		return err
	}
	layers, err := img.Layers()
	if err != nil {
		return err
	}
	for _, l := range layers {
		digest, err := l.Digest()
		if err != nil {
			return err
		}
		size, err := l.Size()
		if err != nil {
			return err
		}
		if err := w.blob(blob{digest, size, l.Compressed}); err != nil {
			return err
		}
	}
	return nil
}

// bytes visits what is small enough to be held.
func (w *walker) bytes(digest v1.Hash, read func() ([]byte, error)) error {
	if w.seen[digest] {
		return nil
	}
	data, err := read()
	if err != nil {
		return err
	}
	return w.blob(blob{digest, int64(len(data)), func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(data)), nil
	}})
}

func (w *walker) blob(b blob) error {
	if w.seen[b.digest] {
		return nil
	}
	if len(w.seen) >= maxBlobs {
		return fmt.Errorf("more than %d blobs", maxBlobs)
	}
	w.seen[b.digest] = true
	return w.visit(b)
}
