package hostexec

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Link replaces the file at to, or nothing, by another name of the one at from,
// atomically and durably: it takes no room. Where both are names of one file
// already, nothing is changed. Not every pair of directories can do that; the
// error says so, and nothing is changed.
func (fs FS) Link(from, to string) error {
	source, err := fs.Resolve(from)
	if err != nil {
		return err
	}
	real, err := fs.Resolve(to)
	if err != nil {
		return err
	}
	temp := tempName(real)
	if err := fs.sweep(temp); err != nil {
		return err
	}
	// rename(2) does nothing where both are names of one file already.
	if same, err := sameFile(source, real); err != nil || same {
		return errors.Join(fs.named(err), fs.named(syncDir(filepath.Dir(real))))
	}
	return fs.change(OpLink, real, func() error {
		if err := os.Link(source, temp); err != nil {
			return fmt.Errorf("link %s to %s: %w", from, to, err)
		}
		if err := os.Rename(temp, real); err != nil {
			_ = os.Remove(temp)
			return fmt.Errorf("rename over %s: %w", to, err)
		}
		return fs.named(syncDir(filepath.Dir(real)))
	})
}

// sameFile tells whether both are names of one file; b need not exist.
func sameFile(a, b string) (bool, error) {
	ia, err := os.Lstat(a)
	if err != nil {
		return false, err
	}
	ib, err := os.Lstat(b)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return err == nil && os.SameFile(ia, ib), err
}
