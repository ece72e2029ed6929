package hostexec

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Clone puts a copy of the file at from in place of the one at to, or of
// nothing, atomically and durably, as Replace does. Nothing of to is kept: the
// copy has from's content, owner, mode with its setuid, setgid and sticky bits,
// times of access and change, and extended attributes, which are its
// capabilities, ACLs and its SELinux label. A symbolic link is copied as a link,
// whatever it points to, and one at to is replaced; see Target for the file
// behind it. What cannot be kept, such as an attribute that the file system of
// to does not know, is an error, and nothing is changed then. It is idempotent.
// Flags of chattr(1) and holes in a file are not copied.
func (fs FS) Clone(ctx context.Context, from, to string) error {
	source, err := fs.entry(from)
	if err != nil {
		return err
	}
	real, err := fs.entry(to)
	if err != nil {
		return err
	}
	temp := tempName(real)
	if err := fs.sweep(temp); err != nil {
		return err
	}
	err = fs.change(OpWrite, temp, func() error {
		err := clone(ctx, source, temp)
		if err != nil {
			_ = os.Remove(temp)
			return fmt.Errorf("copy %s to %s: %w", from, to, fs.named(err))
		}
		return nil
	})
	if err != nil {
		return err
	}
	p := &Prepared{fs: fs, path: to, temp: temp, real: real}
	defer p.Discard()
	return p.Commit()
}

// Target is the host's path of what path leads to, every link followed; path
// itself where it is none. The file need not exist.
func (fs FS) Target(path string) (string, error) {
	real, err := fs.Resolve(path)
	if err != nil {
		return "", err
	}
	return fs.HostPath(real), nil
}

// Readlink is the text of a symbolic link, as it is.
func (fs FS) Readlink(path string) (string, error) {
	real, err := fs.entry(path)
	if err != nil {
		return "", err
	}
	text, err := os.Readlink(real)
	return text, fs.named(err)
}

func clone(ctx context.Context, source, temp string) error {
	var st unix.Stat_t
	if err := unix.Lstat(source, &st); err != nil {
		return &os.PathError{Op: "lstat", Path: source, Err: err}
	}
	var sync func() error
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		f, err := copyContent(ctx, source, temp)
		if err != nil {
			return err
		}
		defer f.Close()
		sync = f.Sync
	case unix.S_IFLNK:
		target, err := os.Readlink(source)
		if err != nil {
			return err
		}
		if err := os.Symlink(target, temp); err != nil {
			return err
		}
		// A link cannot be opened; the directory's fsync has to do.
		sync = func() error { return syncDir(filepath.Dir(temp)) }
	default:
		return &os.PathError{Op: "copy", Path: source, Err: errors.New("neither a file nor a symbolic link")}
	}
	if err := copyAttributes(source, temp, st); err != nil {
		return err
	}
	return sync()
}

// copyContent leaves temp open.
func copyContent(ctx context.Context, source, temp string) (*os.File, error) {
	// Reading is to leave no trace on the original, where that is allowed.
	in, err := os.OpenFile(source, os.O_RDONLY|unix.O_NOATIME|unix.O_NOFOLLOW, 0)
	if errors.Is(err, unix.EPERM) {
		in, err = os.OpenFile(source, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	}
	if err != nil {
		return nil, err
	}
	defer in.Close()
	out, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if _, err := io.Copy(out, &contextReader{ctx, in}); err != nil {
		_ = out.Close()
		return nil, err
	}
	return out, nil
}

// copyAttributes takes this order since a change of the owner drops the setuid
// bit and the capabilities, and an ACL changes the mode.
func copyAttributes(source, temp string, st unix.Stat_t) error {
	if err := os.Lchown(temp, int(st.Uid), int(st.Gid)); err != nil {
		return err
	}
	if err := copyXattrs(source, temp); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFLNK {
		if err := unix.Chmod(temp, st.Mode&0o7777); err != nil {
			return &os.PathError{Op: "chmod", Path: temp, Err: err}
		}
	}
	times := []unix.Timespec{st.Atim, st.Mtim}
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, temp, times, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return &os.PathError{Op: "utimensat", Path: temp, Err: err}
	}
	return nil
}
