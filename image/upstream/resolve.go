package upstream

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/node-upgrader/node-upgrader/image/download"
)

// MissingVersionsError names the components whose version neither the caller nor
// the lock says.
type MissingVersionsError struct{ Components []string }

func (e *MissingVersionsError) Error() string {
	return "no version of " + strings.Join(e.Components, ", ") + ": give it, as the lock does not have it"
}

// choose returns each component's version: what is asked for, else the lock's.
func choose(l Lock, asked map[string]string) (map[string]string, error) {
	versions := map[string]string{}
	var missing []string
	for _, component := range Components() {
		v := asked[component]
		if v != "" && !strings.HasPrefix(v, "v") {
			v = "v" + v
		}
		if v == "" {
			v = l.version(component)
		}
		if v == "" {
			missing = append(missing, component)
		}
		if v != "" && !versionSyntax.MatchString(v) {
			return nil, notReleased(component, v)
		}
		versions[component] = v
	}
	if missing != nil {
		return nil, &MissingVersionsError{missing}
	}
	return versions, nil
}

// covered returns the pins for versions and architectures; all that the lock does
// not have is named in one error.
func (l Lock) covered(name string, versions map[string]string, architectures []string) ([]Pin, error) {
	var pins []Pin
	var problems []error
	for _, arch := range architectures {
		for _, component := range Components() {
			a, err := newArtifact(component, versions[component], arch)
			if err != nil {
				return nil, err
			}
			p, ok := l.find(component, arch)
			switch {
			case !ok:
				problems = append(problems, &LockError{name, fmt.Sprintf("does not have %s for %s", component, arch), hintUpdate})
			case p.Version != a.Version:
				problems = append(problems, &LockError{name, fmt.Sprintf("has %s, but %s is asked for", p, a.Version), hintUpdate})
			}
			pins = append(pins, p)
		}
	}
	return pins, errors.Join(problems...)
}

// published asks the projects for the checksums of versions, and pins them. What
// the old lock has of the same version must not have changed: a release does not.
func published(ctx context.Context, f *download.Fetcher, mirror string, old Lock, name string, versions map[string]string, architectures []string) (Lock, error) {
	var all []Artifact
	for _, arch := range architectures {
		for _, component := range Components() {
			a, err := newArtifact(component, versions[component], arch)
			if err != nil {
				return Lock{}, err
			}
			all = append(all, a)
		}
	}
	pins := make([]Pin, len(all))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(8)
	for i, a := range all {
		g.Go(func() error {
			address := mirrored(a.Checksums, mirror)
			text, err := f.Text(gctx, address, maxChecksums)
			if err != nil {
				return fmt.Errorf("checksum of %s: %w", a.Component, err)
			}
			sum, err := findChecksum(text, path.Base(a.URL))
			if err != nil {
				return fmt.Errorf("checksum of %s: %s %w", a.Component, download.Redacted(address), err)
			}
			pins[i] = Pin{a.Component, a.Version, a.Architecture, a.URL, sum}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return Lock{}, err
	}
	var changed []error
	for _, p := range pins {
		if q, ok := old.find(p.Component, p.Architecture); ok && q.URL == p.URL && q.SHA256 != p.SHA256 {
			changed = append(changed, &LockError{
				name, fmt.Sprintf("has the sha256 %s of %s, but %s is published now: a release does not change", q.SHA256, p, p.SHA256),
				"find out at the project why; if the new one is right, take the entry out of the lock by hand",
			})
		}
	}
	slices.SortFunc(pins, comparePins)
	return Lock{SchemaVersion, pins}, errors.Join(changed...)
}

// mirrored is where an address is on a mirror: below it, by host and path.
func mirrored(address, mirror string) string {
	if mirror == "" {
		return address
	}
	return strings.TrimSuffix(mirror, "/") + "/" + strings.TrimPrefix(address, "https://")
}
