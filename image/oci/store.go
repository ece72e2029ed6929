package oci

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sync/errgroup"
)

// storeBlobs puts blobs into a layout's directory, several at a time.
func storeBlobs(ctx context.Context, dir string, list []blob, tell func(int64)) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(4)
	for _, b := range list {
		g.Go(func() error { return b.store(ctx, filepath.Join(dir, blobName(b.digest)), tell) })
	}
	return g.Wait()
}

func (b blob) store(ctx context.Context, name string, tell func(int64)) error {
	there, err := b.isThere(ctx, name)
	if err != nil {
		return err
	}
	if there {
		tell(b.size)
		return nil
	}
	r, err := b.open()
	if err != nil {
		return err
	}
	defer r.Close()
	return replace(name, newChecked(readCloser{&cancelled{ctx, r, tell}, r}, b.descriptor()))
}

// isThere tells whether the file has the blob's bytes. One that has others is
// written anew: the disk may have lost what was not synced.
func (b blob) isThere(ctx context.Context, name string) (bool, error) {
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	_, err = io.Copy(io.Discard, newChecked(readCloser{&cancelled{ctx, f, nil}, f}, b.descriptor()))
	if isBad(err) {
		return false, nil
	}
	return err == nil, err
}

func (b blob) descriptor() v1.Descriptor { return v1.Descriptor{Digest: b.digest, Size: b.size} }

// replace writes a file beside its place and moves it there.
func replace(name string, r io.Reader) (err error) {
	f, err := os.CreateTemp(filepath.Dir(name), ".new-")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	_, err = io.CopyBuffer(struct{ io.Writer }{f}, r, make([]byte, bufferSize))
	if err == nil {
		err = f.Chmod(0o644)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}

func isBad(err error) bool {
	var e *Error
	return errors.As(err, &e)
}
