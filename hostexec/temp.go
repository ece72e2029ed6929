package hostexec

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
)

// tempMark is in the name of each temporary file of ours, so that what a crash
// left can be told from anybody else's.
const tempMark = ".upgrader-tmp"

func tempName(real string) string {
	return filepath.Join(filepath.Dir(real), "."+filepath.Base(real)+tempMark)
}

// TempOf is the path of the file for which a temporary file of ours was
// written; false for any other file.
func TempOf(path string) (string, bool) {
	dir, base := filepath.Split(path)
	name, ok := strings.CutPrefix(base, ".")
	if name, ok2 := strings.CutSuffix(name, tempMark); ok && ok2 && name != "" {
		return dir + name, true
	}
	return "", false
}

// Sweep removes the temporary file that a crash has left for the file at path,
// links followed; none is not an error.
func (fs FS) Sweep(path string) error {
	real, err := fs.Resolve(path)
	if err != nil {
		return err
	}
	return fs.sweep(tempName(real))
}

// sweep removes the temporary file that a crash, or a failure, has left.
func (fs FS) sweep(temp string) error {
	if _, err := os.Lstat(temp); err != nil {
		if absent(err) {
			return nil
		}
		return fs.named(err)
	}
	return fs.change(OpRemove, temp, func() error {
		if err := os.Remove(temp); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fs.named(err)
		}
		return nil
	})
}
