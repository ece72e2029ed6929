package oci

import (
	"context"
	"errors"
)

// Images are the images at a place, without what is attached to them: the one of
// a tag or digest in a registry, all of a layout or an archive. Call done when
// they are no longer read.
func (r *Registries) Images(ctx context.Context, p Place) (list []Artifact, done func() error, err error) {
	if p.Path == "" {
		a, err := inRegistry{ctx, r, p}.image()
		if err != nil {
			return nil, nil, err
		}
		return []Artifact{a}, func() error { return nil }, nil
	}
	l, err := Open(p.Path)
	if err != nil {
		return nil, nil, err
	}
	if list, err = l.Images(); err != nil {
		return nil, nil, errors.Join(err, l.Close())
	}
	return list, l.Close, nil
}

// RepositoryOf is the repository of a full name, without tag and digest; "" where
// there is none.
func RepositoryOf(ref string) string {
	p, err := registryPlace(ref)
	if err != nil {
		return ""
	}
	return p.Repository.Name()
}
