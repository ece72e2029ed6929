package oci

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Progress is told how many bytes have been handled, of how many. It may be nil.
type Progress func(done, total int64)

// WriteArchive writes an archive with these artifacts and no others. The same
// artifacts in the same order are the same bytes. The archive is complete or as
// it was before, also when the program is killed.
func WriteArchive(ctx context.Context, file string, all []Artifact, progress Progress) error {
	if err := writeArchive(ctx, file, all, progress); err != nil {
		return fmt.Errorf("write image archive %s: %w", file, err)
	}
	return nil
}

func writeArchive(ctx context.Context, file string, all []Artifact, progress Progress) (err error) {
	index, err := merge(nil, all)
	if err != nil {
		return err
	}
	list, total, err := collect(all)
	if err != nil {
		return err
	}
	tell := meter(total, progress)
	contents := []TarFile{held(layoutFile, []byte(layoutVersion)), held(indexFile, index)}
	for _, b := range list {
		contents = append(contents, TarFile{blobName(b.digest), 0o644, b.size, func(ctx context.Context) (io.ReadCloser, error) {
			r, err := b.open()
			if err != nil {
				return nil, err
			}
			return readCloser{&cancelled{ctx, r, tell}, r}, nil
		}})
	}
	f, err := os.CreateTemp(filepath.Dir(file), ".image-")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	err = WriteTar(ctx, f, contents)
	if err == nil {
		err = f.Chmod(0o644)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), file)
}

// WriteLayout puts artifacts into a layout's directory, which is made where it
// is missing. What is there stays; an artifact of the same tag is replaced, and
// what was attached to it goes with it. It can be repeated after an interruption:
// blobs that are there are hashed instead of written.
func WriteLayout(ctx context.Context, dir string, all []Artifact, progress Progress) error {
	if err := writeLayout(ctx, dir, all, progress); err != nil {
		return fmt.Errorf("write OCI layout %s: %w", dir, err)
	}
	return nil
}

func writeLayout(ctx context.Context, dir string, all []Artifact, progress Progress) error {
	old, err := existing(dir, all)
	if err != nil {
		return err
	}
	index, err := merge(old, all)
	if err != nil {
		return err
	}
	list, total, err := collect(all)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(dir, blobsDir), 0o755); err != nil {
		return err
	}
	if err := storeBlobs(ctx, dir, list, meter(total, progress)); err != nil {
		return err
	}
	for _, f := range []struct {
		name string
		data []byte
	}{{layoutFile, []byte(layoutVersion)}, {indexFile, index}} {
		if err := replace(filepath.Join(dir, f.name), bytes.NewReader(f.data)); err != nil {
			return err
		}
	}
	return nil
}

// Add puts artifacts into a layout or an archive that is there already. One of
// the same tag is replaced, and what was attached to it goes with it. An archive
// is written anew.
func Add(ctx context.Context, path string, all ...Artifact) error {
	l, err := Open(path)
	if err != nil {
		return err
	}
	defer l.Close()
	if _, ok := l.files.(directory); ok {
		return WriteLayout(ctx, path, all, nil)
	}
	list, err := l.Artifacts()
	if err != nil {
		return err
	}
	gone, err := l.orphans(all)
	if err != nil {
		return err
	}
	list = slices.DeleteFunc(without(list, all), func(a Artifact) bool { return gone[a.id()] })
	return WriteArchive(ctx, path, append(list, all...), nil)
}

// existing are the descriptors of a layout that is there, and stay when all is
// put into it.
func existing(dir string, all []Artifact) ([]v1.Descriptor, error) {
	if _, err := os.Lstat(filepath.Join(dir, indexFile)); errors.Is(err, fs.ErrNotExist) {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for _, e := range entries {
			if e.Name() != "blobs" && e.Name() != layoutFile { // an interrupted write
				return nil, &Error{fmt.Errorf("the directory is not empty and no OCI layout: it has %s", printable(e.Name())), "give a directory of its own"}
			}
		}
		return nil, nil
	}
	l, err := openLayout(dir)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	gone, err := l.orphans(all)
	if err != nil { // of a manifest that a crash spoiled, which may be written again now
		return l.index.Manifests, nil //nolint:nilerr // what stays too long is named by Images
	}
	return slices.DeleteFunc(l.index.Manifests, func(d v1.Descriptor) bool {
		return gone[cmp.Or(artifactOf(d, nil).Tag, d.Digest.String())]
	}), nil
}

const layoutVersion = `{"imageLayoutVersion":"1.0.0"}`

// merge is index.json with the artifacts added.
func merge(list []v1.Descriptor, all []Artifact) ([]byte, error) {
	for _, a := range all {
		d, err := a.descriptor()
		if err != nil {
			return nil, err
		}
		list = slices.DeleteFunc(list, func(old v1.Descriptor) bool {
			tag := artifactOf(old, nil).Tag
			return tag == a.Tag && (tag != "" || old.Digest == d.Digest)
		})
		list = append(list, d)
	}
	return json.Marshal(v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex, Manifests: list})
}

// collect lists every blob once, and what they weigh together.
func collect(all []Artifact) (list []blob, total int64, err error) {
	w := walker{seen: map[v1.Hash]bool{}, visit: func(b blob) error {
		list = append(list, b)
		total += b.size
		return nil
	}}
	for _, a := range all {
		if err := w.manifest(a.Manifest, 0); err != nil {
			return nil, 0, err
		}
	}
	return list, total, nil
}

// meter returns what adds up and tells; calls come from several goroutines.
func meter(total int64, progress Progress) func(int64) {
	var mu sync.Mutex
	var done int64
	return func(n int64) {
		if progress == nil || n == 0 {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		done += n
		progress(done, total)
	}
}

func held(name string, data []byte) TarFile {
	return TarFile{name, 0o644, int64(len(data)), func(context.Context) (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(data)), nil
	}}
}

type readCloser struct {
	io.Reader
	io.Closer
}
