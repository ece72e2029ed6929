package components

import (
	"archive/tar"
	"bytes"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// A layer lists the files of one image layer.
type layer []entry

// An entry is a file, directory or symbolic link in a layer.
type entry struct {
	path string      // in the image, without a leading slash
	mode fs.FileMode // type and permissions
	from string      // of a file: where its content is
	link string      // of a symbolic link: its target
}

func fromFile(path, from string) entry {
	return entry{path: path, mode: 0o755, from: from}
}

func directory(path string, unixMode uint32) entry {
	mode := fs.ModeDir | fs.FileMode(unixMode&0o777)
	if unixMode&0o1000 != 0 {
		mode |= fs.ModeSticky
	}
	return entry{path: path, mode: mode}
}

// fromTree is everything below root.
func fromTree(root string) (layer, error) {
	var out layer
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil || file == root {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, file)
		if err != nil {
			return err
		}
		e := entry{path: rel, mode: info.Mode()}
		switch {
		case e.mode&fs.ModeSymlink != 0:
			e.link, err = os.Readlink(file)
		case e.mode.IsRegular():
			e.from = file
		}
		out = append(out, e)
		return err
	})
	return out, err
}

// tar is the layer as a tar archive. Order, owner and times do not depend on the
// machine: two runs over the same content give the same bytes.
func (l layer) tar() ([]byte, error) {
	entries := l.withParents()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, e := range entries {
		if err := e.write(w); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}

// withParents adds the directories that are only implied, and sorts.
func (l layer) withParents() layer {
	have := map[string]bool{".": true}
	for _, e := range l {
		have[e.path] = true
	}
	out := slices.Clone(l)
	for _, e := range l {
		for dir := path.Dir(e.path); !have[dir]; dir = path.Dir(dir) {
			have[dir] = true
			out = append(out, directory(dir, 0o755))
		}
	}
	slices.SortFunc(out, func(a, b entry) int { return strings.Compare(a.path, b.path) })
	return out
}

func (e entry) write(w *tar.Writer) error {
	header := &tar.Header{Name: e.path, Format: tar.FormatPAX, Mode: int64(e.mode.Perm())}
	for bit, mode := range map[fs.FileMode]int64{fs.ModeSticky: 0o1000, fs.ModeSetgid: 0o2000, fs.ModeSetuid: 0o4000} {
		if e.mode&bit != 0 {
			header.Mode |= mode
		}
	}
	switch {
	case e.mode.IsDir():
		header.Typeflag, header.Name = tar.TypeDir, e.path+"/"
		return w.WriteHeader(header)
	case e.mode&fs.ModeSymlink != 0:
		header.Typeflag, header.Linkname = tar.TypeSymlink, e.link
		return w.WriteHeader(header)
	}
	f, err := os.Open(e.from)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	header.Typeflag, header.Size = tar.TypeReg, info.Size()
	if err := w.WriteHeader(header); err != nil {
		return err
	}
	_, err = io.Copy(w, f)
	return err
}
