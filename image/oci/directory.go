package oci

import (
	"errors"
	"io"
	"os"
	"syscall"
)

// directory is a layout's directory. Links in it are followed only within it.
type directory struct{ root *os.Root }

func openDirectory(path string) (files, error) {
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	return directory{root}, nil
}

func (d directory) Close() error { return d.root.Close() }

func (d directory) open(name string) (io.ReadCloser, int64, error) {
	f, err := d.root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe would wait for a writer
	if errors.Is(err, syscall.ENXIO) {
		return nil, 0, bad("%s is not a regular file", name)
	}
	if err != nil {
		return nil, 0, err
	}
	fi, err := f.Stat()
	if err == nil && !fi.Mode().IsRegular() {
		err = bad("%s is not a regular file", name)
	}
	if err != nil {
		return nil, 0, errors.Join(err, f.Close())
	}
	return f, fi.Size(), nil
}
