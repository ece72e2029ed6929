package hostexec

import (
	"fmt"
	"os"
	"path/filepath"
)

// Symlink makes path a symbolic link with this text, atomically and durably, in
// place of what had the name; a directory is not replaced. The directory of path
// is made. One with this text that is there already stays as it is.
func (fs FS) Symlink(text, path string) error {
	if err := fs.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	real, err := fs.entry(path)
	if err != nil {
		return err
	}
	temp := tempName(real)
	if err := fs.sweep(temp); err != nil {
		return err
	}
	if have, err := os.Readlink(real); err == nil && have == text {
		return fs.named(syncDir(filepath.Dir(real)))
	}
	return fs.change(OpSymlink, real, func() error {
		if err := os.Symlink(text, temp); err != nil {
			return fmt.Errorf("link %s to %s: %w", path, text, err)
		}
		if err := os.Rename(temp, real); err != nil {
			_ = os.Remove(temp)
			return fmt.Errorf("rename over %s: %w", path, err)
		}
		return fs.named(syncDir(filepath.Dir(real)))
	})
}
