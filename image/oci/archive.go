package oci

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"syscall"
)

// archive is a tar of a layout, read in place: it is listed once, by its
// headers, and a file in it is a section of it.
type archive struct {
	file  *os.File
	files map[string]section
}

type section struct{ offset, size int64 }

// wanted are a layout's files. Further ones, such as Docker's manifest.json, are
// let be: nothing refers to them.
var wanted = regexp.MustCompile(`^(` + layoutFile + `|` + indexFile + `|` + blobsDir + `/[0-9a-f]{64})$`)

func openArchive(name string) (files, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	fi, err := f.Stat()
	if err == nil && !fi.Mode().IsRegular() {
		err = bad("neither a directory nor a regular file")
	}
	if err == nil {
		var list map[string]section
		if list, err = listArchive(f, fi.Size()); err == nil {
			return &archive{f, list}, nil
		}
	}
	return nil, errors.Join(err, f.Close())
}

// listArchive reads the headers only. r is at its start.
func listArchive(r io.ReadSeeker, total int64) (map[string]section, error) {
	if err := notCompressed(r); err != nil {
		return nil, err
	}
	list := map[string]section{}
	t := tar.NewReader(r)
	for n := 0; ; n++ {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return list, nil
		}
		if err != nil {
			return nil, bad("not a tar, or cut: %v", err)
		}
		if n >= maxBlobs {
			return nil, bad("the archive has more than %d files", maxBlobs)
		}
		offset, err := r.Seek(0, io.SeekCurrent) // the tar reader does not read ahead
		if err != nil {
			return nil, err
		}
		clean := path.Clean(h.Name)
		if h.Typeflag == tar.TypeDir || !wanted.MatchString(clean) && h.Typeflag == tar.TypeReg {
			continue
		}
		switch _, twice := list[clean]; {
		case h.Typeflag != tar.TypeReg || sparse(h):
			return nil, bad("%s in the archive is not a regular file", printable(h.Name))
		case twice:
			return nil, bad("%s is twice in the archive", clean)
		case h.Size > total-offset:
			return nil, bad("the archive ends in the middle of %s", clean)
		}
		list[clean] = section{offset, h.Size}
	}
}

// sparse files are not stored as they are read.
func sparse(h *tar.Header) bool {
	return slices.ContainsFunc(slices.Collect(maps.Keys(h.PAXRecords)), func(key string) bool {
		return strings.HasPrefix(key, "GNU.sparse.")
	})
}

func notCompressed(r io.ReadSeeker) error {
	head := make([]byte, 4)
	n, err := io.ReadFull(r, head)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return err
	}
	for magic, with := range map[string]string{"\x1f\x8b": "gunzip", "\x28\xb5\x2f\xfd": "unzstd", "\xfd7zX": "unxz"} {
		if bytes.HasPrefix(head[:n], []byte(magic)) {
			return &Error{Err: errors.New("the archive is compressed as a whole"), Hint: "uncompress it with " + with + "; its layers may be compressed"}
		}
	}
	_, err = r.Seek(0, io.SeekStart)
	return err
}

func (a *archive) Close() error { return a.file.Close() }

func (a *archive) open(name string) (io.ReadCloser, int64, error) {
	s, ok := a.files[name]
	if !ok {
		return nil, 0, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return io.NopCloser(io.NewSectionReader(a.file, s.offset, s.size)), s.size, nil
}

// printable keeps what an attacker chose from a terminal.
func printable(s string) string {
	const most = 256
	if len(s) > most {
		s = s[:most] + "…"
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return '?'
		}
		return r
	}, s)
}
