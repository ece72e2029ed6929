package upstream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"slices"

	"github.com/node-upgrader/node-upgrader/image"
	"github.com/node-upgrader/node-upgrader/image/download"
)

// Options say what is built.
type Options struct {
	Versions      map[string]string // by component; for the others it is the lock's
	Architectures []string          // at least one; several make a set of bundles
	Lock          string            // the lock file
	Update        bool              // write it: for Versions, all of Architectures, and those that it has
	Mirror        string            // base address; "": the projects' own
	Download      download.Options
	Out           string
	// Bundle has what else is asked of the build: Replace, with one architecture
	// only, Versions of replaced components, Images and Progress.
	Bundle image.BuildOptions
	Log    *slog.Logger
}

// Build makes a bundle, or for several architectures a set of them. Out and the
// lock are as they were when it fails, but for a lock whose artifacts were all
// fetched and found right; what was fetched stays in the cache.
func Build(ctx context.Context, o Options) ([]*image.Bundle, error) {
	fetcher, err := o.fetcher()
	if err != nil {
		return nil, err
	}
	lock, err := ReadLock(o.Lock)
	switch {
	case errors.Is(err, os.ErrNotExist) && o.Update:
	case errors.Is(err, os.ErrNotExist):
		return nil, &LockError{o.Lock, "is missing: it says what the artifacts must be", hintUpdate}
	case err != nil:
		return nil, err
	}
	versions, err := choose(lock, o.Versions)
	if err != nil {
		return nil, err
	}
	if len(o.Bundle.Replace) == 0 { // else it shows when those files were asked
		if err := image.CheckVersions(versions[image.Kubelet], versions[image.Containerd], versions[image.Runc]); err != nil {
			return nil, err
		}
	}
	if o.Update {
		architectures := append(lock.architectures(), o.Architectures...)
		slices.Sort(architectures)
		if lock, err = published(ctx, fetcher, o.Mirror, lock, o.Lock, versions, slices.Compact(architectures)); err != nil {
			return nil, err
		}
	}
	pins, err := lock.covered(o.Lock, versions, o.Architectures)
	if err != nil {
		return nil, err
	}
	paths, err := fetcher.Fetch(ctx, files(pins, o.Mirror))
	if err != nil {
		return nil, err
	}
	if o.Update {
		if err := lock.Write(o.Lock); err != nil {
			return nil, err
		}
		o.Log.Info("pinned what the projects publish", "lock", o.Lock, "artifacts", len(lock.Artifacts))
	}
	return o.assemble(ctx, pins, paths, versions)
}

// fetcher checks the mirror and makes the fetcher for it.
func (o Options) fetcher() (*download.Fetcher, error) {
	d := o.Download
	if o.Mirror != "" {
		if err := download.Allowed(o.Mirror, true); err != nil {
			return nil, fmt.Errorf("mirror: %w", err)
		}
		u, err := url.Parse(o.Mirror)
		if err != nil {
			return nil, errors.New("mirror: is not an address") // Allowed said so
		}
		if u.RawQuery != "" || u.Fragment != "" {
			return nil, fmt.Errorf("mirror %s: paths are put behind it: no '?' and no '#'", download.Redacted(o.Mirror))
		}
		// The lock says what comes, over whatever. Checksums that come the same way
		// would say nothing.
		d.HTTP = u.Scheme == "http"
		if err := download.Allowed(o.Mirror, false); o.Update && err != nil {
			return nil, fmt.Errorf("a lock is not made over http: %w", err)
		}
	}
	return download.New(d)
}

func files(pins []Pin, mirror string) []download.File {
	list := make([]download.File, len(pins))
	for i, p := range pins {
		list[i] = download.File{Name: p.String(), URL: mirrored(p.URL, mirror), SHA256: p.SHA256}
	}
	return list
}

// assemble lays the artifacts out as directories of components, beside Out, and
// builds from them.
func (o Options) assemble(ctx context.Context, pins []Pin, paths []string, versions map[string]string) (bundles []*image.Bundle, err error) {
	out, err := filepath.Abs(o.Out)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return nil, err
	}
	tmp, err := os.MkdirTemp(filepath.Dir(out), ".components-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	for i, p := range pins {
		if err := layOut(ctx, filepath.Join(tmp, p.Architecture), p, paths[i]); err != nil {
			return nil, fmt.Errorf("%s: %w", p, err)
		}
	}
	each := make([]image.BuildOptions, len(o.Architectures))
	for i, arch := range o.Architectures {
		each[i] = o.Bundle
		each[i].From, each[i].Out, each[i].Architecture = filepath.Join(tmp, arch), o.Out, arch
		each[i].KubernetesVersion, each[i].Expect = versions[image.Kubelet], versions
	}
	return image.BuildAll(ctx, o.Out, each)
}
