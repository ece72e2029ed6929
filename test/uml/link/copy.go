package link

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// durableCopy copies files, directories and symbolic links to the path dst, the
// copy's own name. Parents are made, files that exist are written in place. At
// its end all of it is on the disk.
func durableCopy(src, dst string) error {
	if err := durableDir(filepath.Dir(dst)); err != nil {
		return err
	}
	err := filepath.WalkDir(src, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(src, name)
		if err != nil {
			return err
		}
		target := filepath.Join(dst, rel)
		info, err := d.Info()
		if err != nil {
			return err
		}
		switch {
		case info.IsDir():
			return durableDir(target)
		case info.Mode()&fs.ModeSymlink != 0:
			text, err := os.Readlink(name)
			if err != nil {
				return err
			}
			return errors.Join(os.Symlink(text, target), syncPath(filepath.Dir(target)))
		case info.Mode().IsRegular():
			return durableFile(name, target, info.Mode().Perm())
		}
		return &fs.PathError{Op: "copy", Path: name, Err: errors.ErrUnsupported}
	})
	return err
}

func durableFile(src, dst string, mode fs.FileMode) error {
	in, err := os.Open(src)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(dst, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	if err := errors.Join(err, out.Chmod(mode), out.Sync(), out.Close()); err != nil {
		return err
	}
	return syncPath(filepath.Dir(dst))
}

// durableDir makes a directory and its parents.
func durableDir(name string) error {
	if info, err := os.Stat(name); err == nil && info.IsDir() {
		return nil
	}
	if err := durableDir(filepath.Dir(name)); err != nil {
		return err
	}
	if err := os.Mkdir(name, 0o755); err != nil {
		return err
	}
	return syncPath(filepath.Dir(name))
}

func syncPath(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
