package image

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/otiai10/copy"
)

// copyBundle copies b to dest, which must not exist, and compares every byte
// with the manifest on the way. before is told of each file.
func copyBundle(ctx context.Context, b *Bundle, dest string, count *meter, before func(name string) error) error {
	files := make(map[string]File, len(b.Manifest.Files)+1)
	for _, f := range b.Manifest.Files {
		files[f.Path] = f
	}
	root := filepath.Clean(b.Dir)
	fi, err := os.Lstat(filepath.Join(root, ManifestName))
	if err != nil {
		return err
	}
	files[ManifestName] = File{Path: ManifestName, Size: fi.Size(), Mode: 0o644, SHA256: strings.TrimPrefix(b.Digest, "sha256:")}
	if b.signature != nil {
		files[SignatureName] = signatureFile(b.signature)
	}
	in := func(dir, name string) string {
		return filepath.ToSlash(strings.TrimPrefix(strings.TrimPrefix(name, dir), "/"))
	}
	// One wrong file ends the copying of all.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// The directory was looked through before. Whatever was put there since
	// then must not be followed, waited for or copied either.
	err = copy.Copy(root+"/.", dest, copy.Options{
		NumOfWorkers:   int64(workers()),
		CopyBufferSize: bufferSize,
		Skip: func(fi os.FileInfo, src, _ string) (bool, error) {
			if fi.IsDir() {
				return false, nil
			}
			if err := lookAt(in(root, src), fi); err != nil {
				return false, err
			}
			return false, before(in(root, src))
		},
		OnSymlink: func(string) copy.SymlinkAction { return copy.Skip },
		PermissionControl: func(fi fs.FileInfo, dst string) (func(*error), error) {
			if fi.IsDir() {
				return func(*error) {}, os.MkdirAll(dst, 0o755)
			}
			mode := os.FileMode(files[in(dest, dst)].Mode)
			return func(*error) {}, os.Chmod(dst, mode)
		},
		WrapReader: func(src io.Reader) io.Reader {
			name := "?"
			if f, ok := src.(*os.File); ok {
				name = in(root, f.Name())
			}
			f, ok := files[name]
			if !ok {
				return failFast{failing{badFile(name, "is not in the manifest")}, cancel}
			}
			add := count.add
			if name == ManifestName || name == SignatureName {
				add = nil
			}
			return failFast{newCheckedReader(ctx, src, f, add), cancel}
		},
	})
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return cause
	}
	return err
}

// failFast tells the first error to those who read other files.
type failFast struct {
	io.Reader
	cancel context.CancelCauseFunc
}

func (r failFast) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		r.cancel(err)
	}
	return n, err
}

// failing is a reader that only has an error to give.
type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }
