package oci

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

// lacking are the artifacts that a registry does not have. A tag such as
// sha256-….sig may have been added to there: what holds all of ours stays as it
// is, and what would be lost is refused with an *Error before anything is sent.
func (r *Registries) lacking(ctx context.Context, repo name.Repository, all []Artifact) ([]Artifact, error) {
	var list []Artifact
	for _, a := range all {
		if isAttached(a.Tag) {
			has, err := r.hasAll(ctx, repo, a)
			if err != nil {
				return nil, err
			}
			if has {
				continue
			}
		}
		list = append(list, a)
	}
	return list, nil
}

// hasAll tells whether a registry has all that is in an artifact under its tag.
func (r *Registries) hasAll(ctx context.Context, repo name.Repository, a Artifact) (bool, error) {
	there, err := r.Find(ctx, repo, a.Tag, "")
	if errors.Is(err, ErrNotFound) || isDenied(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	theirs, err1 := parts(there.Manifest)
	ours, err2 := parts(a.Manifest)
	switch {
	case err1 != nil || err2 != nil:
		return false, errors.Join(err1, err2)
	case within(ours, theirs):
		return true, nil
	case within(theirs, ours):
		return false, nil
	}
	return false, &Error{
		fmt.Errorf("%s is there already with something else in it, which would be lost", repo.Tag(a.Tag).Name()),
		"another signature of the image is added where it is, by `cosign sign --key KEY`; what is not needed any more, delete there; or take another repository",
	}
}

// isDenied tells whether a registry wants no such question: some have no other
// answer for a repository that is not there yet. Whoever may not push hears it then.
func isDenied(err error) bool {
	var e *transport.Error
	return errors.As(err, &e) && (e.StatusCode == http.StatusUnauthorized || e.StatusCode == http.StatusForbidden)
}

// parts are what is attached: signatures by several keys are layers with one
// digest and several annotations.
func parts(m Manifest) (map[string]bool, error) {
	img, ok := m.(v1.Image)
	if !ok {
		digest, err := m.Digest()
		return map[string]bool{digest.String(): true}, err
	}
	manifest, err := img.Manifest()
	if err != nil {
		return nil, err
	}
	all := map[string]bool{}
	for _, d := range manifest.Layers {
		all[fmt.Sprint(d.MediaType, d.Digest, d.Annotations)] = true
	}
	return all, nil
}

func within(some, all map[string]bool) bool {
	for s := range some {
		if !all[s] {
			return false
		}
	}
	return true
}
