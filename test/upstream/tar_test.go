//go:build e2e_upstream

package upstream

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// A file of an image layer.
type file struct {
	path string // without a leading slash
	mode fs.FileMode
	from string // where the content is, or
	text string // the content
	hard string // a hard link to this path
}

// tarOf is a layer of the files in their order; parents are implied.
func tarOf(files []file) ([]byte, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, f := range files {
		header := &tar.Header{Name: f.path, Typeflag: tar.TypeReg, Mode: int64(f.mode.Perm())}
		if f.mode&fs.ModeSetuid != 0 {
			header.Mode |= 0o4000
		}
		if f.mode&fs.ModeSticky != 0 {
			header.Mode |= 0o1000
		}
		data := []byte(f.text)
		switch {
		case f.mode.IsDir():
			header.Typeflag, header.Name = tar.TypeDir, f.path+"/"
		case f.hard != "":
			header.Typeflag, header.Linkname, header.Mode = tar.TypeLink, f.hard, 0o755
		case f.from != "":
			var err error
			if data, err = os.ReadFile(f.from); err != nil {
				return nil, err
			}
		}
		header.Size = int64(len(data))
		if err := w.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := w.Write(data); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}

// libraries are the dynamic loader and the shared libraries that busybox is
// linked with, under the names by which they are loaded.
func libraries(root string) ([]file, error) {
	var files []file
	for _, pattern := range []string{"lib*/ld-linux*.so.*", "lib/*/libc.so.6", "lib/*/libresolv.so.2"} {
		found, err := filepath.Glob(filepath.Join(root, "usr", pattern))
		if err != nil {
			return nil, err
		}
		if len(found) == 0 {
			return nil, fmt.Errorf("busybox's root file system has no %s", pattern)
		}
		for _, from := range found {
			name, err := filepath.Rel(filepath.Join(root, "usr"), from)
			if err != nil {
				return nil, err
			}
			if link, err := os.Readlink(from); err == nil { // the loader is an absolute link
				from = filepath.Join(root, link)
			}
			files = append(files, file{path: name, mode: 0o755, from: from})
		}
	}
	return files, nil
}
