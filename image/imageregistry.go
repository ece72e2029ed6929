package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"

	"github.com/node-upgrader/node-upgrader/image/oci"
)

// registries are asked for images.
type registries struct {
	client  *oci.Registries
	mirrors map[string]string
}

// find takes of an index the index itself and the one manifest of the platform:
// so the image has on the node the digest that it has in the registry.
func (r registries) find(ctx context.Context, ref, arch string) (foundImage, error) {
	at, err := r.at(ref)
	if err != nil {
		return foundImage{}, err
	}
	a, err := r.client.Find(ctx, at.Repository, at.TagStr(), "")
	if err != nil {
		return foundImage{}, err
	}
	var found foundImage
	switch m := a.Manifest.(type) {
	case v1.Image:
		found, err = imageOf(m)
	case v1.ImageIndex:
		found, err = imageIn(m, arch)
	default:
		err = fmt.Errorf("it is a %T", m)
	}
	if err != nil {
		return found, fmt.Errorf("fetch %s: %w", at, err)
	}
	return found, nil
}

// at is where an image is fetched from.
func (r registries) at(ref string) (name.Tag, error) {
	for registry, mirror := range r.mirrors {
		if rest, ok := strings.CutPrefix(ref, registry+"/"); ok {
			ref = strings.TrimSuffix(mirror, "/") + "/" + rest
			break
		}
	}
	return name.NewTag(ref, name.StrictValidation)
}

// imageIn is an index with its image for an architecture.
func imageIn(index v1.ImageIndex, arch string) (foundImage, error) {
	images, err := partial.FindImages(index, func(d v1.Descriptor) bool { return fitsPlatform(d, arch) })
	if err != nil {
		return foundImage{}, err
	}
	if len(images) == 0 {
		return foundImage{}, fmt.Errorf("it has no image for linux/%s", arch)
	}
	found, err := imageOf(images[0])
	if err != nil {
		return found, err
	}
	raw, err1 := index.RawManifest()
	media, err2 := index.MediaType()
	digest, err3 := v1.NewHash(digestOf(raw))
	found.target = v1.Descriptor{MediaType: media, Size: int64(len(raw)), Digest: digest}
	found.content[digest.String()] = raw
	return found, errors.Join(err1, err2, err3)
}

// imageOf is an image without an index.
func imageOf(img v1.Image) (foundImage, error) {
	raw, err := img.RawManifest()
	if err != nil {
		return foundImage{}, err
	}
	config, err := img.RawConfigFile()
	if err != nil {
		return foundImage{}, err
	}
	media, err := img.MediaType()
	if err != nil {
		return foundImage{}, err
	}
	m, err := img.Manifest()
	if err != nil {
		return foundImage{}, err
	}
	if m.Config.Digest.String() != digestOf(config) {
		return foundImage{}, fmt.Errorf("its configuration is not %s", m.Config.Digest)
	}
	digest, err := v1.NewHash(digestOf(raw))
	if err != nil {
		return foundImage{}, err
	}
	found := foundImage{
		target:  v1.Descriptor{MediaType: media, Size: int64(len(raw)), Digest: digest},
		content: map[string][]byte{digest.String(): raw, m.Config.Digest.String(): config},
	}
	for _, d := range m.Layers {
		found.blobs = append(found.blobs, foundBlob{d, func(context.Context) (io.ReadCloser, error) {
			layer, err := img.LayerByDigest(d.Digest)
			if err != nil {
				return nil, err
			}
			return layer.Compressed()
		}})
	}
	return found, nil
}
