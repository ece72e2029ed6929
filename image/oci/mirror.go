package oci

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// MirrorOptions say what is copied where.
type MirrorOptions struct {
	Source, Dest Place
	// Tag is which image of a layout or an archive is meant; "" where it has one.
	Tag        string
	Registries *Registries
	Progress   Progress // when Dest is a layout or an archive
}

// Mirrored is what was copied.
type Mirrored struct {
	// Image is repository@digest, as a pod may name it; the digest alone where
	// no repository is known.
	Image    string
	Digest   string
	Attached []string // tags or digests of the signatures, SBOMs and the like
}

// Mirror copies an image, every architecture of it, with the signatures and
// SBOMs that are attached to it or to one of its architectures. The digests stay
// the same, which is proved after the copy. What Dest has already is not sent
// again: an interrupted copy can be repeated. Only an archive is then written
// from its beginning, and is as it was until it is whole. In a registry the
// image's tag comes last, so that whoever finds it finds what is attached to it.
func Mirror(ctx context.Context, o MirrorOptions) (Mirrored, error) {
	m, err := mirror(ctx, o)
	if err != nil {
		return m, fmt.Errorf("copy %s to %s: %w", o.Source, o.Dest, err)
	}
	return m, nil
}

func mirror(ctx context.Context, o MirrorOptions) (_ Mirrored, err error) {
	src, err := openSource(ctx, o)
	if err != nil {
		return Mirrored{}, err
	}
	defer func() { err = errors.Join(err, src.Close()) }()
	image, err := src.image()
	if err != nil {
		return Mirrored{}, err
	}
	digest, err := image.Manifest.Digest()
	if err != nil {
		return Mirrored{}, err
	}
	if want := o.Dest.Digest; want != "" && want != digest.String() {
		return Mirrored{}, fmt.Errorf("the image is %s, not %s", digest, want)
	}
	attached, err := attachedTo(src, image.Manifest)
	if err != nil {
		return Mirrored{}, err
	}
	result := Mirrored{Digest: digest.String(), Image: digest.String()}
	for _, a := range attached {
		result.Attached = append(result.Attached, a.id())
	}
	if o.Dest.Tag != "" {
		image.Tag = o.Dest.Tag
	}
	if o.Dest.Path == "" {
		result.Image = o.Dest.Repository.Name() + "@" + digest.String()
		return result, o.Registries.Push(ctx, o.Dest.Repository, append(attached, image)...)
	}
	if repository, _, ok := cutTag(image.Name); ok {
		result.Image = repository + "@" + digest.String()
	}
	return result, keep(ctx, o, append([]Artifact{image}, attached...))
}

// keep puts artifacts into a layout or an archive and reads all of it again.
func keep(ctx context.Context, o MirrorOptions, all []Artifact) error {
	var err error
	switch _, missing := os.Lstat(o.Dest.Path); {
	case o.Dest.Layout:
		err = WriteLayout(ctx, o.Dest.Path, all, o.Progress)
	case missing != nil:
		err = WriteArchive(ctx, o.Dest.Path, all, o.Progress)
	default: // other images in it stay
		err = Add(ctx, o.Dest.Path, all...)
	}
	if err != nil {
		return err
	}
	l, err := Open(o.Dest.Path)
	if err != nil {
		return err
	}
	return errors.Join(l.Verify(), l.Close())
}

// source is where an image is copied from.
type source interface {
	image() (Artifact, error)
	// tag may be ErrNotFound.
	tag(tag string) (Artifact, error)
	referrers(digest v1.Hash) ([]Artifact, error)
	Close() error
}

func openSource(ctx context.Context, o MirrorOptions) (source, error) {
	if o.Source.Path == "" {
		return inRegistry{ctx, o.Registries, o.Source}, nil
	}
	l, err := Open(o.Source.Path)
	if err != nil {
		return nil, err
	}
	return inLayout{l, o.Tag}, nil
}

type inRegistry struct {
	ctx        context.Context // of the one copy
	registries *Registries
	place      Place
}

func (s inRegistry) Close() error { return nil }

func (s inRegistry) image() (Artifact, error) {
	if s.place.Tag == "" && s.place.Digest == "" {
		return Artifact{}, &Error{fmt.Errorf("%s has no tag and no digest", s.place), "say which image: " + s.place.String() + ":TAG"}
	}
	return s.registries.Find(s.ctx, s.place.Repository, s.place.Tag, s.place.Digest)
}

func (s inRegistry) tag(tag string) (Artifact, error) {
	return s.registries.Find(s.ctx, s.place.Repository, tag, "")
}

func (s inRegistry) referrers(digest v1.Hash) ([]Artifact, error) {
	return s.registries.Referrers(s.ctx, s.place.Repository, digest)
}

type inLayout struct {
	*Layout
	which string
}

func (s inLayout) tag(tag string) (Artifact, error) { return s.Find(tag) }

// image is the one image, or the one that was asked for.
func (s inLayout) image() (Artifact, error) {
	if s.which != "" {
		return s.Find(s.which)
	}
	list, err := s.Images()
	if err != nil {
		return Artifact{}, err
	}
	if len(list) == 1 {
		return list[0], nil
	}
	var ids []string
	for _, a := range list {
		ids = append(ids, a.id())
	}
	return Artifact{}, &Error{fmt.Errorf("it has %d images: %s", len(list), strings.Join(ids, ", ")), "say which one with --tag"}
}

func (s inLayout) referrers(digest v1.Hash) ([]Artifact, error) {
	list, err := s.Artifacts()
	if err != nil {
		return nil, err
	}
	list = slices.DeleteFunc(list, func(a Artifact) bool {
		d := subject(a.Manifest)
		return d == nil || d.Digest != digest
	})
	for i := range list {
		list[i].Name = "" // containerd shall not import it
		if !isAttached(list[i].Tag) {
			list[i].Tag = ""
		}
	}
	return list, nil
}

// subject is the manifest that another one refers to.
func subject(m Manifest) *v1.Descriptor {
	switch m := m.(type) {
	case v1.Image:
		if manifest, err := m.Manifest(); err == nil {
			return manifest.Subject
		}
	case v1.ImageIndex:
		if list, err := m.IndexManifest(); err == nil {
			return list.Subject
		}
	}
	return nil
}

// id is the artifact's tag, or its digest where it has none.
func (a Artifact) id() string {
	if a.Tag != "" {
		return a.Tag
	}
	digest, err := a.Manifest.Digest()
	if err != nil {
		return "?"
	}
	return digest.String()
}
