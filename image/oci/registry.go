package oci

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

// RegistryOptions say how registries are spoken to. Credentials come from the
// usual Docker configuration (DOCKER_CONFIG, ~/.docker/config.json with its
// helpers, REGISTRY_AUTH_FILE), trust from the system's certificate authorities.
type RegistryOptions struct {
	CAFile string // PEM: further certificate authorities; may be empty
	// PlainHTTP lets passwords and images go over the network in the clear. A
	// registry on this machine's loopback address may do so anyway.
	PlainHTTP bool
	UserAgent string
}

// Registries is a client of registries.
type Registries struct {
	options   []remote.Option
	plainHTTP bool
}

// NewRegistries reads the certificate authorities; it asks no registry yet.
func NewRegistries(o RegistryOptions) (*Registries, error) {
	t, err := newTransport(o)
	if err != nil {
		return nil, err
	}
	return &Registries{
		options: []remote.Option{
			remote.WithTransport(t), remote.WithAuthFromKeychain(authn.DefaultKeychain),
			remote.WithUserAgent(o.UserAgent), remote.WithJobs(4),
		},
		plainHTTP: o.PlainHTTP,
	}, nil
}

func (r *Registries) with(ctx context.Context) []remote.Option {
	return append([]remote.Option{remote.WithContext(ctx)}, r.options...)
}

// repository allows plain HTTP where that was asked for. The library would also
// fall back to it for private addresses: see guard.
func (r *Registries) repository(repo name.Repository) name.Repository {
	if !r.plainHTTP {
		return repo
	}
	plain, err := name.NewRepository(repo.Name(), name.StrictValidation, name.Insecure)
	if err != nil {
		return repo
	}
	return plain
}

// Find fetches the manifest with this tag, or with this digest where that is not
// empty. What does not exist is ErrNotFound; every error tells what to do. What
// is below it is fetched, and compared with its digest, when it is read.
func (r *Registries) Find(ctx context.Context, repo name.Repository, tag, digest string) (Artifact, error) {
	repo = r.repository(repo)
	a := Artifact{Tag: tag}
	var ref name.Reference = repo.Digest(digest)
	if tag != "" {
		a.Name = repo.Tag(tag).Name()
	}
	if digest == "" {
		ref = repo.Tag(tag)
	}
	d, err := remote.Get(ref, r.with(ctx)...)
	if err == nil {
		a.Manifest, err = fetched(d)
	}
	if err != nil {
		return a, explain("fetch "+ref.Name(), repo, err)
	}
	return a, nil
}

func fetched(d *remote.Descriptor) (Manifest, error) {
	switch {
	case d.MediaType.IsIndex():
		return d.ImageIndex()
	case d.MediaType.IsImage():
		return d.Image()
	default:
		return nil, fmt.Errorf("neither an image nor an index but %q", d.MediaType)
	}
}

// Referrers fetches what names a manifest as its subject, such as signatures of
// newer tools.
func (r *Registries) Referrers(ctx context.Context, repo name.Repository, digest v1.Hash) ([]Artifact, error) {
	repo = r.repository(repo)
	ref := repo.Digest(digest.String())
	index, err := remote.Referrers(ref, r.with(ctx)...)
	if err != nil {
		return nil, explain("ask for what refers to "+ref.Name(), repo, err)
	}
	list, err := index.IndexManifest()
	if err != nil {
		return nil, explain("read what refers to "+ref.Name(), repo, err)
	}
	if err := checkDescriptors("the list of what refers to "+ref.Name(), list.Manifests); err != nil {
		return nil, err
	}
	var all []Artifact
	for _, d := range list.Manifests {
		a, err := r.Find(ctx, repo, "", d.Digest.String())
		if err != nil {
			return nil, err
		}
		all = append(all, a)
	}
	return all, nil
}

// Push puts artifacts into a repository in their order, each with everything
// below it first. What is there is not sent again, so it can be repeated after
// an interruption. Signatures that were added there stay: see lacking. In the end
// each is fetched again, to prove that it has the same digest.
func (r *Registries) Push(ctx context.Context, repo name.Repository, all ...Artifact) error {
	repo = r.repository(repo)
	all, err := r.lacking(ctx, repo, all)
	if err != nil {
		return err
	}
	pusher, err := remote.NewPusher(r.with(ctx)...)
	if err != nil {
		return err
	}
	for _, a := range all {
		digest, err := a.Manifest.Digest()
		if err != nil {
			return err
		}
		var ref name.Reference = repo.Digest(digest.String())
		if a.Tag != "" {
			ref = repo.Tag(a.Tag)
		}
		if err := pusher.Push(ctx, ref, a.Manifest); err != nil {
			return explain("push "+ref.Name(), repo, err)
		}
	}
	for _, a := range all {
		if err := r.check(ctx, repo, a); err != nil {
			return err
		}
	}
	return nil
}

// check fetches what was pushed.
func (r *Registries) check(ctx context.Context, repo name.Repository, a Artifact) error {
	want, err := a.Manifest.Digest()
	if err != nil {
		return err
	}
	by := ""
	if a.Tag == "" {
		by = want.String()
	}
	there, err := r.Find(ctx, repo, a.Tag, by)
	if err != nil {
		return fmt.Errorf("after the push: %w", err)
	}
	got, err := there.Manifest.Digest()
	if err == nil && got != want {
		err = &Error{
			fmt.Errorf("the registry has %s as %s instead of %s", repo.Tag(a.Tag).Name(), got, want),
			"somebody else pushes to the same tag, or the registry changes what it gets",
		}
	}
	return err
}

// isMissing tells whether a registry says that there is no such thing.
func isMissing(err error) bool {
	var e *transport.Error
	return errors.As(err, &e) && e.StatusCode == http.StatusNotFound
}
