package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/node-upgrader/node-upgrader/image"
	"github.com/node-upgrader/node-upgrader/image/attach"
	"github.com/node-upgrader/node-upgrader/image/oci"
	"github.com/node-upgrader/node-upgrader/image/sbom"
	"github.com/node-upgrader/node-upgrader/image/trust"
	"github.com/node-upgrader/node-upgrader/steps"
)

// isImage tells an archive or an OCI layout from a bundle.
func isImage(path string) bool {
	if fi, err := os.Stat(path); err != nil || !fi.IsDir() {
		return err == nil
	}
	_, bundle := os.Lstat(filepath.Join(path, image.ManifestName))
	_, layout := os.Lstat(filepath.Join(path, "oci-layout"))
	return bundle != nil && layout == nil
}

// verifyImage checks every blob of an archive or a layout, who signed the images
// in it where that is asked, and that what is in them is what their SBOMs say.
func verifyImage(ctx context.Context, out io.Writer, path, key string) error {
	var keys *trust.Keys
	if key != "" {
		var err error
		if keys, err = trust.LoadKeys(key); err != nil {
			return err
		}
	}
	l, err := oci.Open(path)
	if err != nil {
		return err
	}
	defer l.Close()
	images, err := l.Images()
	if err != nil {
		return err
	}
	v := imageVerifier{l, keys, out}
	for _, a := range images {
		if err := v.image(ctx, a.Manifest); err != nil {
			return err
		}
	}
	if len(images) == 0 {
		return &steps.HintError{Err: fmt.Errorf("%s: there is no image in it", path), Hint: "make one: upgrader bundle image"}
	}
	return l.Verify()
}

type imageVerifier struct {
	layout *oci.Layout
	keys   *trust.Keys // nil: no signature is asked for
	out    io.Writer
}

func (v imageVerifier) image(ctx context.Context, m oci.Manifest) error {
	digest, err := m.Digest()
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(v.out, digest); err != nil {
		return err
	}
	if err := v.signature(m); err != nil {
		return err
	}
	return v.contents(ctx, m)
}

func (v imageVerifier) signature(m oci.Manifest) error {
	if v.keys == nil {
		return nil
	}
	by, err := attach.Verify(v.layout, m, v.keys, time.Now())
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(v.out, "signed by", by)
	return err
}

// contents compares each image with its SBOM, where it has one.
func (v imageVerifier) contents(ctx context.Context, m oci.Manifest) error {
	if index, ok := m.(v1.ImageIndex); ok {
		list, err := index.IndexManifest()
		if err != nil {
			return err
		}
		for _, d := range list.Manifests {
			img, err := index.Image(d.Digest)
			if err != nil {
				return err
			}
			if err := v.contents(ctx, img); err != nil {
				return err
			}
		}
		return nil
	}
	digest, err := m.Digest()
	if err != nil {
		return err
	}
	data, of, err := attach.SBOM(v.layout, digest)
	if errors.Is(err, oci.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := v.signature(of); err != nil {
		return err
	}
	img, ok := m.(v1.Image)
	if !ok {
		return fmt.Errorf("%s is no image", digest)
	}
	have, err := attach.Contents(ctx, img)
	if err != nil {
		return err
	}
	if err := sbom.Difference(data, have); err != nil {
		return fmt.Errorf("%s is not what its SBOM says: %w", digest, err)
	}
	_, err = fmt.Fprintf(v.out, "%s: %d files, as its SBOM says\n", digest, len(have))
	return err
}
