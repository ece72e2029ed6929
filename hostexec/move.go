package hostexec

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// What changes there are of trees.
const (
	OpMove  = "move"  // a file or a tree gets this name
	OpChown = "chown" // a tree gets another owner
)

// Move gives a file or a tree another name in the same file system, durably. It
// replaces nothing: what lies at to already is an error.
func (fs FS) Move(from, to string) error {
	source, err := fs.entry(from)
	if err != nil {
		return err
	}
	real, err := fs.entry(to)
	if err != nil {
		return err
	}
	if _, err := os.Lstat(real); !absent(err) {
		if err == nil {
			err = os.ErrExist
		}
		return fmt.Errorf("move %s to %s: %w", from, to, fs.named(err))
	}
	return fs.change(OpMove, real, func() error {
		if err := os.Rename(source, real); err != nil {
			return fmt.Errorf("move %s to %s: %w", from, to, fs.named(err))
		}
		return fs.named(errors.Join(syncDir(filepath.Dir(real)), syncDir(filepath.Dir(source))))
	})
}

// OwnAs gives a tree the owner and the group of the file or directory at like,
// links themselves included, and its top the mode too. It is idempotent.
func (fs FS) OwnAs(tree, like string) error {
	source, err := fs.Resolve(like)
	if err != nil {
		return err
	}
	real, err := fs.Resolve(tree)
	if err != nil {
		return err
	}
	info, err := os.Stat(source)
	if err != nil {
		return fs.named(err)
	}
	return fs.change(OpChown, real, func() error { return fs.named(ownAs(real, info)) })
}

func ownAs(real string, like fs.FileInfo) error {
	st := like.Sys().(*syscall.Stat_t) //nolint:forcetypeassert // Stat on Linux
	err := filepath.WalkDir(real, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, int(st.Uid), int(st.Gid))
	})
	if err != nil {
		return err
	}
	return os.Chmod(real, like.Mode().Perm())
}
