package oci

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// Files of a layout.
const (
	layoutFile = "oci-layout"
	indexFile  = "index.json"
	blobsDir   = "blobs/sha256"
)

// ErrNotFound says that there is no such artifact.
var ErrNotFound = errors.New("no such image")

// Layout is an OCI layout or an archive of one, open for reading.
type Layout struct {
	path  string
	files files
	index v1.IndexManifest
}

// files are a layout's files, wherever they lie.
type files interface {
	open(name string) (r io.ReadCloser, size int64, err error)
	io.Closer
}

// Open opens a layout's directory or an archive and reads its list of artifacts.
// What is wrong with it is an *Error. Close it when what was found in it is no
// longer read.
func Open(path string) (*Layout, error) {
	l, err := openLayout(path)
	if err != nil {
		return nil, fmt.Errorf("open image %s: %w", path, err)
	}
	return l, nil
}

func openLayout(path string) (_ *Layout, err error) {
	fi, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	var content files
	if fi.IsDir() {
		content, err = openDirectory(path)
	} else {
		content, err = openArchive(path)
	}
	if err != nil {
		return nil, err
	}
	l := &Layout{path: path, files: content}
	if err := l.read(); err != nil {
		return nil, errors.Join(err, content.Close())
	}
	return l, nil
}

// Close ends the use of the layout and of every manifest from it.
func (l *Layout) Close() error { return l.files.Close() }

func (l *Layout) read() error {
	var version struct {
		Version string `json:"imageLayoutVersion"`
	}
	if err := l.decode(layoutFile, &version); err != nil {
		return err
	}
	if version.Version != "1.0.0" {
		return bad("%s: layout version %q, this program knows 1.0.0", layoutFile, version.Version)
	}
	if err := l.decode(indexFile, &l.index); err != nil {
		return err
	}
	if l.index.SchemaVersion != 2 {
		return bad("%s: schema version %d instead of 2", indexFile, l.index.SchemaVersion)
	}
	for i := range l.index.Manifests {
		// What lies in the descriptor instead of a blob is checked by nobody.
		l.index.Manifests[i].Data = nil
	}
	if err := checkDescriptors(indexFile, l.index.Manifests); err != nil {
		return err
	}
	return checkNames(l.index.Manifests)
}

func (l *Layout) decode(name string, into any) error {
	r, size, err := l.files.open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return bad("%s is missing: not an OCI layout or an archive of one", name)
	}
	if err != nil {
		return err
	}
	defer r.Close()
	if size > maxManifest {
		return bad("%s is larger than %d MiB", name, maxManifest>>20)
	}
	data, err := io.ReadAll(io.LimitReader(r, maxManifest))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, into); err != nil {
		return bad("%s: %v", name, err)
	}
	return nil
}

// Artifacts are what index.json lists, in its order.
func (l *Layout) Artifacts() ([]Artifact, error) {
	list := make([]Artifact, 0, len(l.index.Manifests))
	for _, d := range l.index.Manifests {
		m, err := l.manifest(d)
		if err != nil {
			return nil, fmt.Errorf("image %s: %w", l.path, err)
		}
		list = append(list, artifactOf(d, m))
	}
	return list, nil
}

// Find returns the artifact with this tag, or ErrNotFound.
func (l *Layout) Find(tag string) (Artifact, error) {
	return l.one(fmt.Sprintf("tag %q", tag), func(d v1.Descriptor) bool { return artifactOf(d, nil).Tag == tag })
}

// FindDigest returns the artifact with this digest, or ErrNotFound. What is
// below another artifact counts as well.
func (l *Layout) FindDigest(digest v1.Hash) (Artifact, error) {
	a, err := l.one(digest.String(), func(d v1.Descriptor) bool { return d.Digest == digest })
	if !errors.Is(err, ErrNotFound) {
		return a, err
	}
	for _, d := range l.index.Manifests {
		if !d.MediaType.IsIndex() {
			continue
		}
		m, err := l.manifest(d)
		if err != nil {
			return Artifact{}, fmt.Errorf("image %s: %w", l.path, err)
		}
		index := m.(v1.ImageIndex) //nolint:forcetypeassert,errcheck // IsIndex said so
		list, err := index.IndexManifest()
		if err != nil {
			return Artifact{}, fmt.Errorf("image %s: %w", l.path, err)
		}
		if i := slices.IndexFunc(list.Manifests, func(d v1.Descriptor) bool { return d.Digest == digest }); i >= 0 {
			m, err := child(index, list.Manifests[i])
			return Artifact{Manifest: m}, err
		}
	}
	return Artifact{}, err
}

func (l *Layout) one(what string, is func(v1.Descriptor) bool) (Artifact, error) {
	i := slices.IndexFunc(l.index.Manifests, is)
	if i < 0 {
		return Artifact{}, fmt.Errorf("image %s: %s: %w", l.path, what, ErrNotFound)
	}
	m, err := l.manifest(l.index.Manifests[i])
	if err != nil {
		return Artifact{}, fmt.Errorf("image %s: %w", l.path, err)
	}
	return artifactOf(l.index.Manifests[i], m), nil
}

// Verify reads every blob of every artifact and compares it with its digest.
func (l *Layout) Verify() error {
	list, err := l.Artifacts()
	if err != nil {
		return err
	}
	for _, a := range list {
		if err := blobs(a.Manifest, drain); err != nil {
			return fmt.Errorf("image %s: %w", l.path, err)
		}
	}
	return nil
}

func drain(b blob) error {
	r, err := b.open()
	if err != nil {
		return err
	}
	defer r.Close()
	_, err = io.Copy(io.Discard, r)
	return err
}

func blobName(digest v1.Hash) string { return path.Join(blobsDir, digest.Hex) }
