package components

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// An image says what an image FROM scratch is made of.
type image struct {
	ref        string // the full name under which it is imported
	layers     []layer
	entrypoint []string
	env        []string
	user       string
	labels     map[string]string // has the version: two tags must not share an image ID
}

// build makes the image. Layers are not compressed: an import on the same
// machine then only has to hash and copy them.
func (im image) build() (v1.Image, error) {
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	img, err := mutate.ConfigFile(img, &v1.ConfigFile{
		OS:           "linux",
		Architecture: runtime.GOARCH,
		Config:       v1.Config{Entrypoint: im.entrypoint, Env: im.env, User: im.user, Labels: im.labels, WorkingDir: "/"},
		RootFS:       v1.RootFS{Type: "layers"},
	})
	if err != nil {
		return nil, err
	}
	for _, l := range im.layers {
		data, err := l.tar()
		if err != nil {
			return nil, err
		}
		if img, err = mutate.AppendLayers(img, static.NewLayer(data, types.OCIUncompressedLayer)); err != nil {
			return nil, err
		}
	}
	return img, nil
}

// writeArchive writes the image to a file as an OCI archive, which
// `ctr -n k8s.io images import FILE` imports under its full name.
func (im image) writeArchive(file string) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("image %s: %w", im.ref, err)
		}
	}()
	img, err := im.build()
	if err != nil {
		return err
	}
	index, err := im.index(img)
	if err != nil {
		return err
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	w := tar.NewWriter(f)
	if err := addFile(w, "oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`)); err != nil {
		return err
	}
	if err := addFile(w, "index.json", index); err != nil {
		return err
	}
	if err := addBlobs(w, img); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	return f.Close()
}

// index is the archive's index.json. The annotations are how containerd and
// others find the name: https://github.com/opencontainers/image-spec/blob/main/annotations.md
func (im image) index(img v1.Image) ([]byte, error) {
	digest, err := img.Digest()
	if err != nil {
		return nil, err
	}
	size, err := img.Size()
	if err != nil {
		return nil, err
	}
	_, tag := splitRef(im.ref)
	return json.Marshal(v1.IndexManifest{
		SchemaVersion: 2,
		MediaType:     types.OCIImageIndex,
		Manifests: []v1.Descriptor{{
			MediaType: types.OCIManifestSchema1,
			Size:      size,
			Digest:    digest,
			Platform:  &v1.Platform{OS: "linux", Architecture: runtime.GOARCH},
			Annotations: map[string]string{
				"io.containerd.image.name":          im.ref,
				"org.opencontainers.image.ref.name": tag,
			},
		}},
	})
}

func addBlobs(w *tar.Writer, img v1.Image) error {
	manifest, err := img.RawManifest()
	if err != nil {
		return err
	}
	config, err := img.RawConfigFile()
	if err != nil {
		return err
	}
	blobs := [][]byte{manifest, config}
	layers, err := img.Layers()
	if err != nil {
		return err
	}
	for _, layer := range layers {
		r, err := layer.Compressed() // as it is in the registry: here uncompressed
		if err != nil {
			return err
		}
		data, err := io.ReadAll(r)
		if err != nil {
			return err
		}
		blobs = append(blobs, data)
	}
	var done []string
	for _, blob := range blobs {
		hash, _, err := v1.SHA256(bytes.NewReader(blob))
		if err != nil {
			return err
		}
		if slices.Contains(done, hash.Hex) {
			continue
		}
		done = append(done, hash.Hex)
		if err := addFile(w, "blobs/sha256/"+hash.Hex, blob); err != nil {
			return err
		}
	}
	return nil
}

func addFile(w *tar.Writer, name string, data []byte) error {
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(data))}); err != nil {
		return err
	}
	_, err := w.Write(data)
	return err
}
