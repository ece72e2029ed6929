package hostexec

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Obstacle is a reason why a file cannot be replaced.
type Obstacle string

// What there is. Each keeps root out too.
const (
	ReadOnly   Obstacle = "is mounted read-only"
	Immutable  Obstacle = "is immutable"   // chattr +i
	AppendOnly Obstacle = "is append-only" // chattr +a
	NotAFile   Obstacle = "is not a regular file"
	NotADir    Obstacle = "is not a directory"
	MountPoint Obstacle = "is a mount point of its own"
)

// ObstacleError is a file or directory that cannot be written.
type ObstacleError struct {
	Path string // what was asked for
	// At is what stands in the way: the file that Path leads to, its
	// directory, or the mount point of that.
	At   string
	What Obstacle
}

func (e *ObstacleError) Error() string {
	if e.At == e.Path {
		return fmt.Sprintf("%s %s", e.Path, e.What)
	}
	return fmt.Sprintf("%s cannot be written: %s %s", e.Path, e.At, e.What)
}

// Replaceable is nil when the file at path, with links followed, could be
// replaced by another one, or made where there is none; else an *ObstacleError.
// It changes nothing and does not look for room; see Free.
func (fs FS) Replaceable(path string) error {
	real, err := fs.Resolve(path)
	if err != nil {
		return err
	}
	info, err := os.Lstat(real)
	if absent(err) {
		return fs.dirWritable(path, filepath.Dir(real))
	}
	if err != nil {
		return fs.named(err)
	}
	if !info.Mode().IsRegular() {
		return fs.obstacle(path, real, NotAFile)
	}
	mounted, err := mountRoot(real)
	if err != nil {
		return fs.named(err)
	}
	if mounted {
		return fs.obstacle(path, real, MountPoint)
	}
	// What the directory is told of includes the whole file system.
	if err := fs.dirWritable(path, filepath.Dir(real)); err != nil {
		return err
	}
	return fs.flagged(path, real, info)
}

// DirWritable is nil when files could be made, renamed and removed in the
// directory at path, with links followed, or when the directory could be made;
// else an *ObstacleError. It changes nothing.
func (fs FS) DirWritable(path string) error {
	real, err := fs.Resolve(path)
	if err != nil {
		return err
	}
	return fs.dirWritable(path, real)
}

// dirWritable looks at the directory, or the nearest one that is there.
func (fs FS) dirWritable(path, dir string) error {
	info, err := os.Lstat(dir)
	for absent(err) && dir != fs.root {
		dir = filepath.Dir(dir)
		info, err = os.Lstat(dir)
	}
	if err != nil {
		return fs.named(err)
	}
	if !info.IsDir() {
		return fs.obstacle(path, dir, NotADir)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fs.named(&os.PathError{Op: "statfs", Path: dir, Err: err})
	}
	if st.Flags&unix.ST_RDONLY != 0 {
		mount, err := fs.mountOf(dir)
		if err != nil {
			return fs.named(err)
		}
		return fs.obstacle(path, mount, ReadOnly)
	}
	return fs.flagged(path, dir, info)
}

func (fs FS) obstacle(path, real string, what Obstacle) error {
	return &ObstacleError{Path: path, At: fs.HostPath(real), What: what}
}

// The flags of chattr(1), from linux/fs.h.
const (
	flagImmutable  = 0x10
	flagAppendOnly = 0x20
)

// flagged looks at the flags of chattr(1). A file system without them has none
// set.
func (fs FS) flagged(path, real string, info fs.FileInfo) error {
	if !info.IsDir() && !info.Mode().IsRegular() {
		return nil
	}
	fd, err := unix.Open(real, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return fs.named(&os.PathError{Op: "open", Path: real, Err: err})
	}
	defer func() { _ = unix.Close(fd) }()
	flags, err := unix.IoctlGetUint32(fd, unix.FS_IOC_GETFLAGS)
	switch {
	case errors.Is(err, unix.ENOTTY), errors.Is(err, unix.ENOTSUP), errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EINVAL):
		return nil
	case err != nil:
		return fs.named(&os.PathError{Op: "read the flags of", Path: real, Err: err})
	case flags&flagImmutable != 0:
		return fs.obstacle(path, real, Immutable)
	case flags&flagAppendOnly != 0:
		return fs.obstacle(path, real, AppendOnly)
	default:
		return nil
	}
}

// mountOf is the mount point of the mount that holds dir.
func (fs FS) mountOf(dir string) (string, error) {
	for ; dir != fs.root && dir != "/"; dir = filepath.Dir(dir) {
		if root, err := mountRoot(dir); err != nil || root {
			return dir, err
		}
	}
	return dir, nil
}

// mountRoot tells whether something is mounted at this very path; false with a
// kernel older than 5.8, which does not tell.
func mountRoot(real string) (bool, error) {
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, real, unix.AT_SYMLINK_NOFOLLOW, 0, &st); err != nil {
		if errors.Is(err, unix.ENOSYS) {
			return false, nil
		}
		return false, &os.PathError{Op: "statx", Path: real, Err: err}
	}
	return st.Attributes_mask&st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
}
