package host

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// rootFS reaches a running host's files from outside. Every path, and every
// symbolic link in it, is resolved inside the host's root by the kernel.
type rootFS struct{ root *os.File }

func (r rootFS) open(name string, flags int, mode os.FileMode) (*os.File, error) {
	how := unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC), Resolve: unix.RESOLVE_IN_ROOT}
	if flags&unix.O_CREAT != 0 {
		how.Mode = uint64(mode.Perm())
	}
	for {
		fd, err := unix.Openat2(int(r.root.Fd()), name, &how)
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) { // raced with a rename
			continue
		}
		if err != nil {
			return nil, &fs.PathError{Op: "open", Path: name, Err: err}
		}
		return os.NewFile(uintptr(fd), name), nil
	}
}

func (r rootFS) readFile(name string) ([]byte, error) {
	f, err := r.open(name, unix.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(f)
}

func (r rootFS) mkdirAll(name string) error {
	f, err := r.open(name, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err == nil {
		return f.Close()
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	parent, base := path.Split(strings.TrimRight(name, "/"))
	if err := r.mkdirAll(path.Clean("/" + parent)); err != nil {
		return err
	}
	dir, err := r.open(path.Clean("/"+parent), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := unix.Mkdirat(int(dir.Fd()), base, 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
		return &fs.PathError{Op: "mkdir", Path: name, Err: err}
	}
	return nil
}

func (r rootFS) writeFile(name string, data io.Reader, mode os.FileMode) (err error) {
	name = path.Clean("/" + name)
	if err := r.mkdirAll(path.Dir(name)); err != nil {
		return err
	}
	f, err := r.open(name, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, mode)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := io.Copy(f, data); err != nil {
		return err
	}
	return f.Chmod(mode)
}

// copyIn copies files, directories and symbolic links.
func (r rootFS) copyIn(src, dst string) error {
	return filepath.WalkDir(src, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(src, name)
		if err != nil {
			return err
		}
		target := path.Join("/", dst, filepath.ToSlash(rel))
		info, err := os.Stat(name)
		if rel != "." {
			info, err = d.Info()
		}
		if err != nil {
			return err
		}
		switch {
		case info.IsDir():
			return r.mkdirAll(target)
		case info.Mode()&fs.ModeSymlink != 0:
			return r.symlink(name, target)
		case info.Mode().IsRegular():
			f, err := os.Open(name)
			if err != nil {
				return err
			}
			defer f.Close()
			return r.writeFile(target, f, info.Mode())
		}
		return &fs.PathError{Op: "copy", Path: name, Err: errors.New("neither file, directory nor link")}
	})
}

func (r rootFS) symlink(src, dst string) error {
	text, err := os.Readlink(src)
	if err != nil {
		return err
	}
	dir, err := r.open(path.Dir(dst), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := unix.Symlinkat(text, int(dir.Fd()), path.Base(dst)); err != nil {
		return &fs.PathError{Op: "symlink", Path: dst, Err: err}
	}
	return nil
}
