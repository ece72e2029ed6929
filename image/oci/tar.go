package oci

import (
	"archive/tar"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
)

// TarFile is a regular file of a tar.
type TarFile struct {
	Name string // in the tar, without a leading slash
	Mode int64
	Size int64
	Open func(ctx context.Context) (io.ReadCloser, error)
}

const bufferSize = 128 << 10

// WriteTar writes files sorted by name, with their directories, owned by root
// and dated 1970: the same files are the same bytes. A file that has not Size
// bytes is an error.
func WriteTar(ctx context.Context, w io.Writer, list []TarFile) error {
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b TarFile) int { return strings.Compare(a.Name, b.Name) })
	t := tar.NewWriter(w)
	made := map[string]bool{}
	for _, f := range list {
		for i, r := range f.Name {
			if dir := f.Name[:i]; r == '/' && !made[dir] {
				made[dir] = true
				if err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755}); err != nil {
					return err
				}
			}
		}
		if err := f.write(ctx, t); err != nil {
			return fmt.Errorf("pack %s: %w", f.Name, err)
		}
	}
	return t.Close()
}

func (f TarFile) write(ctx context.Context, t *tar.Writer) error {
	src, err := f.Open(ctx)
	if err != nil {
		return err
	}
	defer src.Close()
	if err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: f.Name, Mode: f.Mode, Size: f.Size}); err != nil {
		return err
	}
	if _, err = io.CopyBuffer(struct{ io.Writer }{t}, &cancelled{ctx, src, nil}, make([]byte, bufferSize)); err != nil {
		return err
	}
	return t.Flush() // that the file was too short is seen here, where its name is known
}

// cancelled ends early when ctx does, and tells how much was read.
type cancelled struct {
	ctx  context.Context
	src  io.Reader
	tell func(int64)
}

func (r *cancelled) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := r.src.Read(p)
	if r.tell != nil {
		r.tell(int64(n))
	}
	return n, err
}
