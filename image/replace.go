package image

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
)

const tempPrefix = ".stage-"

// replace writes dir/name through a temporary file: fsync, rename, fsync of the
// directory. After an error or a crash the old file is as it was.
func replace(dir, name string, mode os.FileMode, write func(*os.File) error) error {
	return replaceFrom(dir, dir, name, mode, write)
}

// replaceFrom is replace with the temporary file in another directory of the
// same file system: for a directory in which a leftover would be a surplus file.
func replaceFrom(temp, dir, name string, mode os.FileMode, write func(*os.File) error) (err error) {
	f, err := os.CreateTemp(temp, tempPrefix+name+"-")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	err = write(f)
	if err == nil {
		err = f.Chmod(mode)
	}
	if err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), filepath.Join(dir, name)); err != nil {
		return err
	}
	return syncDir(dir)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// removeLeftovers removes what attempts that were killed left in dir.
func removeLeftovers(o StageOptions, dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), tempPrefix) {
			if told := o.change("remove-all", dir, tempPrefix+"*"); told != nil {
				return errors.Join(err, told)
			}
			err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
	return err
}
