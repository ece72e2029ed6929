package oci

import (
	"fmt"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// attachments tells which artifacts of a list belong to others of it. Only what
// has no name, and the tag or the subject of what is in the list itself, does:
// what a tool such as "ctr images import" could name, and what belongs to
// nothing here, counts as an image of its own.
func attachments(list []Artifact) ([]bool, error) {
	attached := make([]bool, len(list))
	known := known{}
	add := func(is func(Artifact) bool, mark bool) (more bool, err error) {
		for i, a := range list {
			if attached[i] || !is(a) {
				continue
			}
			if err := known.add(a.Manifest, 0); err != nil {
				return false, err
			}
			attached[i], more = mark, true
		}
		return more, nil
	}
	_, err := add(func(a Artifact) bool { return a.belongsTo() == nil }, false)
	for more := true; more && err == nil; { // an SBOM may be signed
		more, err = add(func(a Artifact) bool {
			to := a.belongsTo()
			return to != nil && known[*to]
		}, true)
	}
	return attached, err
}

// belongsTo is the manifest that an artifact without a name of its own says it
// is attached to, nil for an image.
func (a Artifact) belongsTo() *v1.Hash {
	if a.Name != "" {
		return nil
	}
	if parts := attached.FindStringSubmatch(a.Tag); parts != nil {
		return &v1.Hash{Algorithm: "sha256", Hex: parts[1]}
	}
	if s := subject(a.Manifest); s != nil && a.Tag == "" {
		return &s.Digest
	}
	return nil
}

// known are digests of manifests.
type known map[v1.Hash]bool

// add adds a manifest and those below it.
func (k known) add(m Manifest, depth int) error {
	digest, err := m.Digest()
	if err != nil {
		return err
	}
	k[digest] = true
	index, ok := m.(v1.ImageIndex)
	if !ok {
		return nil
	}
	if depth >= maxDepth {
		return bad("%s: indexes are nested more than %d deep", digest, maxDepth)
	}
	list, err := index.IndexManifest()
	if err != nil {
		return err
	}
	for _, d := range list.Manifests {
		if k[d.Digest] || !d.MediaType.IsIndex() {
			k[d.Digest] = true
			continue
		}
		below, err := child(index, d)
		if err != nil {
			return err
		}
		if err := k.add(below, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// Images are a layout's artifacts without what is attached to them. Something
// that says it is attached to an image, which is not in the layout, counts as an
// image.
func (l *Layout) Images() ([]Artifact, error) {
	list, err := l.Artifacts()
	if err != nil {
		return nil, err
	}
	attached, err := attachments(list)
	if err != nil {
		return nil, err
	}
	images := list[:0]
	for i, a := range list {
		if !attached[i] {
			images = append(images, a)
		}
	}
	return images, nil
}

// orphans are the ids of a layout's artifacts that were attached to an image
// which all replaces by another one of the same tag: such as its old signature.
func (l *Layout) orphans(all []Artifact) (map[string]bool, error) {
	old, err := l.Artifacts()
	if err != nil {
		return nil, err
	}
	before, err := attachments(old)
	if err != nil {
		return nil, err
	}
	gone := map[string]bool{}
	for i, a := range old {
		if before[i] {
			gone[a.id()] = true
		}
	}
	next := slices.Concat(without(old, all), all)
	after, err := attachments(next)
	for i, a := range next {
		if after[i] {
			delete(gone, a.id())
		}
	}
	for _, a := range all {
		delete(gone, a.id())
	}
	return gone, err
}

// without is a list without what others replace.
func without(list, others []Artifact) []Artifact {
	return slices.DeleteFunc(slices.Clone(list), func(old Artifact) bool {
		return slices.ContainsFunc(others, func(a Artifact) bool { return a.Tag != "" && a.Tag == old.Tag })
	})
}

// checkNames refuses a list in which one name or tag stands for two things: each
// tool would take another one.
func checkNames(list []v1.Descriptor) error {
	type meaning struct{ digest, mediaType string }
	seen := map[string]meaning{}
	for _, d := range list {
		a := artifactOf(d, nil)
		m := meaning{d.Digest.String(), string(d.MediaType)}
		for _, key := range []string{"tag " + a.Tag, "name " + a.Name} {
			if old, ok := seen[key]; ok && old != m && !strings.HasSuffix(key, " ") {
				return &Error{
					fmt.Errorf("%s: the %s is given to %s and to %s", indexFile, printable(key), old.digest, m.digest),
					"make it again, with one image of that name, or a tag of its own for each",
				}
			}
			seen[key] = m
		}
	}
	return nil
}
