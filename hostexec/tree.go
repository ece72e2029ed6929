package hostexec

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// MkdirAll makes a directory and its parents, durably; one that is there keeps
// its mode.
func (fs FS) MkdirAll(path string, mode fs.FileMode) error {
	real, err := fs.Resolve(path)
	if err != nil {
		return err
	}
	if info, err := os.Stat(real); err == nil && info.IsDir() {
		return nil
	}
	return fs.change(OpMkdir, real, func() error { return fs.named(mkdirAll(real, mode)) })
}

func mkdirAll(real string, mode fs.FileMode) error {
	parent := filepath.Dir(real)
	if _, err := os.Stat(parent); errors.Is(err, os.ErrNotExist) && parent != real {
		if err := mkdirAll(parent, mode); err != nil {
			return err
		}
	}
	if err := os.Mkdir(real, mode); err != nil {
		if info, statErr := os.Stat(real); statErr != nil || !info.IsDir() {
			return err
		}
	}
	return syncDir(parent)
}

// Remove removes one file or empty directory, and the temporary file that a
// crash may have left for it, and makes that durable; one that is not there is
// not an error.
func (fs FS) Remove(path string) error {
	real, err := fs.entry(path)
	if err != nil {
		return err
	}
	if err := fs.sweep(tempName(real)); err != nil {
		return err
	}
	return fs.remove(OpRemove, real, os.Remove)
}

// RemoveAll removes a tree and makes that durable; one that is not there is not
// an error. A crash may leave a part of it.
func (fs FS) RemoveAll(path string) error {
	real, err := fs.entry(path)
	if err != nil {
		return err
	}
	return fs.remove(OpRemoveAll, real, os.RemoveAll)
}

func (fs FS) remove(op, real string, remove func(string) error) error {
	_, err := os.Lstat(real)
	if absent(err) { // a crash may have kept an earlier removal from the disk
		if err := syncDir(filepath.Dir(real)); !absent(err) {
			return fs.named(err)
		}
		return nil
	}
	if err != nil {
		return fs.named(err)
	}
	return fs.change(op, real, func() error {
		if err := remove(real); err != nil && !absent(err) {
			return fs.named(err)
		}
		return fs.named(syncDir(filepath.Dir(real)))
	})
}

func absent(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}
