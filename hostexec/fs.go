package hostexec

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	securejoin "github.com/cyphar/filepath-securejoin"
	"golang.org/x/sys/unix"
)

// FS is the host's file system below a root directory. All paths are the
// host's own absolute paths; links are resolved as the host would, inside the
// root. The zero value is not usable; use NewFS. What changes something is told
// to the Watch, if it has one.
type FS struct {
	root  string
	watch Watch
}

// NewFS returns the file system below root: "/" on the node itself.
func NewFS(root string) FS { return FS{root: filepath.Clean(root)} }

// Root is the directory that the host's "/" is seen at.
func (fs FS) Root() string { return fs.root }

// Resolve returns the path, as this process sees it, of the host's path with
// every link followed. The file itself need not exist.
func (fs FS) Resolve(path string) (string, error) {
	if !filepath.IsAbs(path) {
		return "", fmt.Errorf("resolve %q: not an absolute path", path)
	}
	return securejoin.SecureJoin(fs.root, path)
}

// HostPath is the inverse of Resolve: the host's own name of a resolved path.
func (fs FS) HostPath(resolved string) string {
	if fs.root == "/" {
		return resolved
	}
	return "/" + strings.TrimPrefix(strings.TrimPrefix(resolved, fs.root), "/")
}

// entry resolves the directory of path but not path's last element: the name
// itself, even when it is a link.
func (fs FS) entry(path string) (string, error) {
	dir, err := fs.Resolve(filepath.Dir(path))
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, filepath.Base(path)), nil
}

// at runs f on the resolved path and gives the error the host's path.
func at[T any](fs FS, path string, f func(real string) (T, error)) (T, error) {
	real, err := fs.Resolve(path)
	if err != nil {
		var zero T
		return zero, err
	}
	v, err := f(real)
	return v, fs.named(err)
}

// named puts the host's path into a path error.
func (fs FS) named(err error) error {
	var p *os.PathError
	if errors.As(err, &p) {
		return &os.PathError{Op: p.Op, Path: fs.HostPath(p.Path), Err: p.Err}
	}
	return err
}

// Open opens a file for reading.
func (fs FS) Open(path string) (*os.File, error) { return at(fs, path, os.Open) }

// ReadFile reads a whole file.
func (fs FS) ReadFile(path string) ([]byte, error) { return at(fs, path, os.ReadFile) }

// ReadDir lists a directory, sorted by name.
func (fs FS) ReadDir(path string) ([]fs.DirEntry, error) { return at(fs, path, os.ReadDir) }

// Stat follows links inside the root.
func (fs FS) Stat(path string) (fs.FileInfo, error) { return at(fs, path, os.Lstat) }

// Lstat does not follow path's last element.
func (fs FS) Lstat(path string) (fs.FileInfo, error) {
	real, err := fs.entry(path)
	if err != nil {
		return nil, err
	}
	info, err := os.Lstat(real)
	return info, fs.named(err)
}

// Exists tells whether path, links followed, is there; an error other than
// "does not exist" is returned.
func (fs FS) Exists(path string) (bool, error) {
	_, err := fs.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// Digest is the sha256, in hex, of a file's content.
func (fs FS) Digest(ctx context.Context, path string) (string, error) {
	f, err := fs.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, &contextReader{ctx, f}); err != nil {
		return "", fmt.Errorf("digest %s: %w", path, err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// ProcessDigest is the sha256, in hex, of the program that process pid runs,
// also when its file was replaced or deleted since.
func (fs FS) ProcessDigest(ctx context.Context, pid int) (string, error) {
	// The link /proc/PID/exe is magic: the kernel opens the running file
	// itself, whatever its text says, so it must not be resolved.
	f, err := os.Open(filepath.Join(fs.root, "proc", fmt.Sprint(pid), "exe"))
	if err != nil {
		return "", fs.named(err)
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, &contextReader{ctx, f}); err != nil {
		return "", fmt.Errorf("digest of process %d: %w", pid, err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// Space is what a file system has left for root, its whole size, and which one
// it is.
type Space struct {
	Bytes, Inodes, Size uint64
	ID                  [2]int32
}

// Free returns the space on the file system that holds path, or its nearest
// directory that exists.
func (fs FS) Free(path string) (Space, error) {
	for p := path; ; p = filepath.Dir(p) {
		real, err := fs.Resolve(p)
		if err != nil {
			return Space{}, err
		}
		var st unix.Statfs_t
		err = unix.Statfs(real, &st)
		if errors.Is(err, os.ErrNotExist) && p != "/" {
			continue
		}
		if err != nil {
			return Space{}, fmt.Errorf("statfs %s: %w", p, err)
		}
		inodes := st.Ffree
		if st.Files == 0 { // btrfs and others make inodes as they need them
			inodes = ^uint64(0)
		}
		size := uint64(st.Bsize) //nolint:gosec // never negative
		return Space{Bytes: st.Bavail * size, Inodes: inodes, Size: st.Blocks * size, ID: st.Fsid.Val}, nil
	}
}

// contextReader ends a long read when the context ends.
type contextReader struct {
	ctx context.Context //nolint:containedctx // it lives as long as one Copy
	r   io.Reader
}

func (c *contextReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}
