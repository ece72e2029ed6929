package image

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// entry is a file of a tar.
type entry struct {
	name string // in the tar, without a leading slash
	mode int64
	size int64
	open func(ctx context.Context) (io.ReadCloser, error)
}

// writeTar writes entries sorted by name, with their directories, owned by root
// and dated 1970.
func writeTar(ctx context.Context, w io.Writer, entries []entry) error {
	entries = slices.Clone(entries)
	slices.SortFunc(entries, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	t := tar.NewWriter(w)
	made := map[string]bool{}
	for _, e := range entries {
		for i, r := range e.name {
			if dir := e.name[:i]; r == '/' && !made[dir] {
				made[dir] = true
				if err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755}); err != nil {
					return err
				}
			}
		}
		if err := writeEntry(ctx, t, e); err != nil {
			return fmt.Errorf("pack %s: %w", e.name, err)
		}
	}
	return t.Close()
}

func writeEntry(ctx context.Context, t *tar.Writer, e entry) error {
	src, err := e.open(ctx)
	if err != nil {
		return err
	}
	defer src.Close()
	if err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: e.name, Mode: e.mode, Size: e.size}); err != nil {
		return err
	}
	_, err = io.CopyBuffer(struct{ io.Writer }{t}, src, make([]byte, bufferSize))
	return err
}

// tarLayout packs an OCI layout's files, deterministically.
func tarLayout(ctx context.Context, dir, out string) (err error) {
	var entries []entry
	err = filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, name)
		if err != nil {
			return err
		}
		entries = append(entries, entry{
			filepath.ToSlash(rel), 0o644, fi.Size(),
			func(ctx context.Context) (io.ReadCloser, error) {
				f, err := os.Open(name)
				if err != nil {
					return nil, err
				}
				return readCloser{&countingReader{ctx, f, nil}, f}, nil
			},
		})
		return nil
	})
	if err != nil {
		return err
	}
	f, err := os.Create(out)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return writeTar(ctx, f, entries)
}
