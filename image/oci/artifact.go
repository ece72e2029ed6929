package oci

import (
	"cmp"
	"fmt"
	"regexp"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Manifest is a v1.Image or a v1.ImageIndex.
type Manifest interface {
	MediaType() (types.MediaType, error)
	Digest() (v1.Hash, error)
	Size() (int64, error)
	RawManifest() ([]byte, error)
}

// Artifact is a manifest with everything below it.
type Artifact struct {
	Tag string // "": it is found by its digest only
	// Name is the full name, registry/repository:tag, under which containerd
	// imports an image; it is kept in layouts and archives. May be empty.
	Name     string
	Manifest Manifest
}

// Annotations of a descriptor in index.json.
const (
	annotationTag  = "org.opencontainers.image.ref.name"
	annotationName = "io.containerd.image.name"
	// What is attached to an image has its tag here: containerd 1.7 unpacks
	// whatever has a name or a tag, and "ctr images import" fails on a signature.
	annotationAttached = "node-upgrader.dev/tag"
)

// Kinds of artifacts that cosign attaches to an image by a tag.
const (
	Signature   = "sig"
	SBOM        = "sbom"
	Attestation = "att"
)

// AttachedTag is the tag under which cosign puts an artifact of this kind for
// the manifest of this digest, as sha256-<hex>.sig.
func AttachedTag(digest v1.Hash, kind string) string {
	return digest.Algorithm + "-" + digest.Hex + "." + kind
}

var attached = regexp.MustCompile(`^sha256-([0-9a-f]{64})(\.[a-z]+)?$`)

// isAttached tells whether a tag is one that belongs to another manifest: see
// AttachedTag. The tag without a kind lists a manifest's referrers in a registry
// that has no API for them. Whoever made the tag says so: see attachments.
func isAttached(tag string) bool { return attached.MatchString(tag) }

// descriptor is the artifact's entry in index.json.
func (a Artifact) descriptor() (v1.Descriptor, error) {
	d, err := describe(a.Manifest)
	if err != nil {
		return d, err
	}
	d.Annotations = map[string]string{}
	switch {
	case isAttached(a.Tag):
		d.Annotations[annotationAttached] = a.Tag
	case a.Tag != "":
		d.Annotations[annotationTag] = a.Tag
	}
	if a.Name != "" {
		d.Annotations[annotationName] = a.Name
	}
	if len(d.Annotations) == 0 {
		d.Annotations = nil
	}
	return d, nil
}

// describe is a manifest's descriptor, with the platform of an image that has one.
func describe(m Manifest) (v1.Descriptor, error) {
	mediaType, err := m.MediaType()
	if err != nil {
		return v1.Descriptor{}, err
	}
	digest, err := m.Digest()
	if err != nil {
		return v1.Descriptor{}, err
	}
	size, err := m.Size()
	if err != nil {
		return v1.Descriptor{}, err
	}
	d := v1.Descriptor{MediaType: mediaType, Digest: digest, Size: size}
	img, ok := m.(v1.Image)
	if !ok {
		return d, nil
	}
	manifest, err := img.Manifest()
	if err != nil {
		return d, err
	}
	if !manifest.Config.MediaType.IsConfig() {
		d.ArtifactType = string(manifest.Config.MediaType)
		return d, nil
	}
	config, err := partial.ConfigFile(img)
	if err != nil {
		return d, fmt.Errorf("configuration of %s: %w", digest, err)
	}
	if config.OS != "" && config.Architecture != "" {
		d.Platform = config.Platform()
	}
	return d, nil
}

// artifactOf is the artifact that a descriptor of index.json stands for.
func artifactOf(d v1.Descriptor, m Manifest) Artifact {
	a := Artifact{Tag: cmp.Or(d.Annotations[annotationTag], d.Annotations[annotationAttached]), Name: d.Annotations[annotationName], Manifest: m}
	if _, tag, ok := cutTag(a.Tag); ok { // some tools put the full name there
		if a.Name == "" {
			a.Name = a.Tag
		}
		a.Tag = tag
	}
	return a
}

// cutTag splits registry/repository:tag.
func cutTag(ref string) (repository, tag string, ok bool) {
	i := strings.LastIndexByte(ref, ':')
	if i < 0 || strings.Contains(ref[i:], "/") {
		return ref, "", false
	}
	return ref[:i], ref[i+1:], true
}
