package image

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// registries are asked for images, with the credentials of the usual Docker
// configuration.
type registries struct{ mirrors map[string]string }

// find takes of an index the index itself and the one manifest of the platform:
// so the image has on the node the digest that it has in the registry.
func (r registries) find(ctx context.Context, ref, arch string) (foundImage, error) {
	at, err := r.at(ref)
	if err != nil {
		return foundImage{}, err
	}
	d, err := remote.Get(at, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain),
		remote.WithPlatform(v1.Platform{OS: "linux", Architecture: arch}))
	if err != nil {
		return foundImage{}, fmt.Errorf("fetch %s: %w", at, err)
	}
	img, err := d.Image()
	if err != nil {
		return foundImage{}, fmt.Errorf("fetch %s for linux/%s: %w", at, arch, err)
	}
	found, err := imageOf(img)
	if err != nil {
		return found, fmt.Errorf("fetch %s: %w", at, err)
	}
	if d.MediaType.IsIndex() {
		found.target = d.Descriptor
		found.content[d.Digest.String()] = d.Manifest
	}
	return found, nil
}

// at is where an image is fetched from.
func (r registries) at(ref string) (name.Reference, error) {
	for registry, mirror := range r.mirrors {
		if rest, ok := strings.CutPrefix(ref, registry+"/"); ok {
			ref = strings.TrimSuffix(mirror, "/") + "/" + rest
			break
		}
	}
	return name.NewTag(ref, name.StrictValidation)
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
