package host

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// copyTree copies the directory src to dst, which must not exist: files with
// their holes, links, devices (an overlay's whiteouts are devices 0:0), modes,
// owners, extended attributes (trusted.overlay.* too) and times. Sockets are
// left out. Files that share an inode share one in the copy. A file that share
// approves of is not copied but hard-linked to the source: nobody may ever
// write to it again.
func copyTree(dst, src string, share func(path string, info *unix.Stat_t) bool) error {
	t := treeCopy{share: share, seen: map[[2]uint64]string{}}
	if err := t.entry(dst, src); err != nil {
		return fmt.Errorf("copy %s: %w", src, err)
	}
	return nil
}

type treeCopy struct {
	share func(string, *unix.Stat_t) bool
	seen  map[[2]uint64]string // device and inode → copy
}

func (t *treeCopy) entry(dst, src string) error {
	var st unix.Stat_t
	if err := unix.Lstat(src, &st); err != nil {
		return &fs.PathError{Op: "lstat", Path: src, Err: err}
	}
	kind := st.Mode & unix.S_IFMT
	if kind != unix.S_IFDIR && st.Nlink > 1 {
		id := [2]uint64{st.Dev, st.Ino}
		if first, ok := t.seen[id]; ok {
			return os.Link(first, dst)
		}
		t.seen[id] = dst
	}
	var err error
	switch kind {
	case unix.S_IFDIR:
		err = t.directory(dst, src)
	case unix.S_IFREG:
		if t.share != nil && t.share(src, &st) {
			if err = os.Link(src, dst); err == nil {
				return nil
			}
			if !errors.Is(err, unix.EXDEV) && !errors.Is(err, unix.EMLINK) {
				return err
			}
		}
		err = copyFile(dst, src, st.Size)
	case unix.S_IFLNK:
		var target string
		if target, err = os.Readlink(src); err == nil {
			err = os.Symlink(target, dst)
		}
	case unix.S_IFSOCK:
		return nil
	default: // devices and FIFOs
		if err = unix.Mknod(dst, st.Mode, int(st.Rdev)); err != nil {
			err = &fs.PathError{Op: "mknod", Path: dst, Err: err}
		}
	}
	if err != nil {
		return err
	}
	return copyAttributes(dst, src, &st)
}

func (t *treeCopy) directory(dst, src string) error {
	if err := os.Mkdir(dst, 0o700); err != nil {
		return err
	}
	entries, err := os.ReadDir(src)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := t.entry(filepath.Join(dst, e.Name()), filepath.Join(src, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// copyFile copies content: by reference where the file system can, else the
// extents that hold data (etcd and the journal preallocate).
func copyFile(dst, src string, size int64) (err error) {
	in, err := os.Open(src)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(dst, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	if size == 0 || unix.IoctlFileClone(int(out.Fd()), int(in.Fd())) == nil {
		return nil
	}
	if err := out.Truncate(size); err != nil {
		return err
	}
	for end := int64(0); end < size; {
		start, err := unix.Seek(int(in.Fd()), end, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil // only a hole is left
		}
		if err != nil {
			return err
		}
		if end, err = unix.Seek(int(in.Fd()), start, unix.SEEK_HOLE); err != nil {
			return err
		}
		if _, err := in.Seek(start, io.SeekStart); err != nil {
			return err
		}
		if _, err := out.Seek(start, io.SeekStart); err != nil {
			return err
		}
		if _, err := io.CopyN(out, in, end-start); err != nil {
			return err
		}
	}
	return nil
}

// copyAttributes is done last: owners clear set-user-ID bits, attributes change
// times.
func copyAttributes(dst, src string, st *unix.Stat_t) error {
	if err := os.Lchown(dst, int(st.Uid), int(st.Gid)); err != nil {
		return err
	}
	link := st.Mode&unix.S_IFMT == unix.S_IFLNK
	if !link {
		if err := unix.Chmod(dst, st.Mode&0o7777); err != nil {
			return &fs.PathError{Op: "chmod", Path: dst, Err: err}
		}
	}
	if err := copyXattrs(dst, src); err != nil {
		return err
	}
	times := []unix.Timespec{st.Atim, st.Mtim}
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, dst, times, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return &fs.PathError{Op: "utimes", Path: dst, Err: err}
	}
	return nil
}

func copyXattrs(dst, src string) error {
	names := make([]byte, 64<<10) // the kernel's limit
	n, err := unix.Llistxattr(src, names)
	if errors.Is(err, unix.ENOTSUP) || n == 0 {
		return nil
	}
	if err != nil {
		return &fs.PathError{Op: "listxattr", Path: src, Err: err}
	}
	value := make([]byte, 64<<10)
	for name := range strings.SplitSeq(strings.TrimSuffix(string(names[:n]), "\x00"), "\x00") {
		n, err := unix.Lgetxattr(src, name, value)
		if err != nil {
			return &fs.PathError{Op: "getxattr " + name, Path: src, Err: err}
		}
		if err := unix.Lsetxattr(dst, name, value[:n], 0); err != nil {
			return &fs.PathError{Op: "setxattr " + name, Path: dst, Err: err}
		}
	}
	return nil
}
