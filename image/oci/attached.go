package oci

import (
	"errors"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// maxAttached bounds what is attached to one image, directly or not.
const maxAttached = 200

// attachedTo finds what is attached to a manifest and to those below it, by
// cosign's tags and as referrers, and what is attached to that: an SBOM may be
// signed. What refers to something comes after it.
func attachedTo(src source, m Manifest) ([]Artifact, error) {
	f := finder{src: src, seen: map[string]bool{}}
	if err := f.manifest(m); err != nil {
		return nil, err
	}
	return f.found, nil
}

type finder struct {
	src   source
	seen  map[string]bool
	found []Artifact
}

func (f *finder) manifest(m Manifest) error {
	digest, err := m.Digest()
	if err != nil || f.seen[digest.String()] {
		return err
	}
	f.seen[digest.String()] = true
	index, ok := m.(v1.ImageIndex)
	if ok {
		list, err := index.IndexManifest()
		if err != nil {
			return err
		}
		for _, d := range list.Manifests {
			below, err := child(index, d)
			if err != nil {
				return err
			}
			if err := f.manifest(below); err != nil {
				return err
			}
		}
	}
	for _, kind := range []string{Signature, SBOM, Attestation} {
		a, err := f.src.tag(AttachedTag(digest, kind))
		if errors.Is(err, ErrNotFound) {
			continue
		}
		if err != nil {
			return err
		}
		a.Name = "" // containerd shall not import it
		if err := f.add(a); err != nil {
			return err
		}
	}
	list, err := f.src.referrers(digest)
	if err != nil {
		return err
	}
	for _, a := range list {
		if err := f.add(a); err != nil {
			return err
		}
	}
	return nil
}

func (f *finder) add(a Artifact) error {
	if id := a.id(); !f.seen["added "+id] {
		f.seen["added "+id] = true
		f.found = append(f.found, a)
	}
	if len(f.found) > maxAttached {
		return bad("more than %d signatures and other things are attached to it", maxAttached)
	}
	return f.manifest(a.Manifest)
}
