// Package archive takes single files out of a .tar.gz of a project's release.
//
// An archive is read as something that may be hostile: every name must be a clean
// path inside of it, nothing but files and directories may be in it, and both the
// number of entries and what they are unpacked are bounded. What is not wanted is
// read over and never written.
package archive

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// Limits bound what an archive may hold.
type Limits struct {
	Entries  int   // files and directories
	Expanded int64 // bytes of the whole archive, unpacked
}

// Default is more than any release of the projects of a bundle needs.
func Default() Limits { return Limits{Entries: 1000, Expanded: 2 << 30} }

// Extract writes the files of the archive r that lie in its directory from, "."
// for the top, and have one of the names into dir, which must exist: executable,
// and under the same name. It returns the names that it found. Anything that an
// archive should not have is an error, a wanted file that is there twice too; what
// was written before it stays. Nothing that lies in dir is written over, and no
// link is followed.
func Extract(ctx context.Context, r io.Reader, from string, names []string, dir string, limits Limits) ([]string, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	found, err := extract(ctx, r, from, names, root, limits)
	if err := errors.Join(err, root.Close()); err != nil {
		return nil, fmt.Errorf("unpack: %w", err)
	}
	return found, nil
}

func extract(ctx context.Context, r io.Reader, from string, names []string, root *os.Root, limits Limits) (found []string, err error) {
	z, err := gzip.NewReader(r)
	if err != nil {
		return nil, fmt.Errorf("not a .tar.gz: %w", err)
	}
	bounded := &boundedReader{ctx: ctx, src: z, left: limits.Expanded}
	members := tar.NewReader(bounded)
	for n := 0; ; n++ {
		h, err := members.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("not a .tar.gz: %w", err)
		}
		if n >= limits.Entries {
			return nil, fmt.Errorf("more than %d entries", limits.Entries)
		}
		name, err := check(h)
		if err != nil {
			return nil, err
		}
		base := path.Base(name)
		if h.Typeflag != tar.TypeReg || path.Dir(name) != from || !slices.Contains(names, base) {
			continue
		}
		if slices.Contains(found, base) {
			return nil, fmt.Errorf("%q is in it twice", name)
		}
		found = append(found, base)
		if err := write(root, base, members); err != nil {
			return nil, fmt.Errorf("%q: %w", name, err)
		}
	}
	// To the end, where gzip's own checksum is.
	if _, err := io.Copy(io.Discard, bounded); err != nil {
		return nil, fmt.Errorf("not a .tar.gz: %w", err)
	}
	return found, nil
}

// check returns an entry's path in the archive, clean.
func check(h *tar.Header) (string, error) {
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeDir:
	default:
		return "", fmt.Errorf("%.100q is neither a file nor a directory", h.Name)
	}
	name := strings.TrimPrefix(h.Name, "./") // as tar writes it for "tar -C dir ."
	if h.Typeflag == tar.TypeDir {
		name = strings.TrimSuffix(name, "/")
		if name == "" {
			name = "."
		}
	}
	if !filepath.IsLocal(name) || path.Clean(name) != name || strings.ContainsAny(name, "\\\x00") {
		return "", fmt.Errorf("%.100q is not a clean path inside of it", h.Name)
	}
	return name, nil
}

func write(root *os.Root, name string, from io.Reader) (err error) {
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	_, err = io.Copy(f, from)
	return err
}

// boundedReader ends with an error after so many bytes, or with ctx.
type boundedReader struct {
	ctx  context.Context
	src  io.Reader
	left int64
}

func (r *boundedReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := r.src.Read(p)
	if r.left -= int64(n); r.left < 0 {
		return 0, errors.New("unpacked it is larger than an archive may be")
	}
	return n, err
}
