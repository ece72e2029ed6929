package oci

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// TestBadArchives changes one thing about an archive, which is then refused:
// when it is opened, or when it is read.
func TestBadArchives(t *testing.T) {
	all := signedImage(t)
	good := readTar(t, archiveOf(t, all))
	at := func(name string) int {
		for i, m := range good {
			if m.Name == name {
				return i
			}
		}
		t.Fatalf("no %s", name)
		return 0
	}
	index, version := at(indexFile), at(layoutFile)
	root := at(blobName(digestOf(t, all[0].Manifest)))
	content, _, err := collect(all)
	if err != nil {
		t.Fatal(err)
	}
	layer := at(blobName(content[1].digest))
	edit := func(change func(*v1.IndexManifest)) func([]member) []member {
		return func(list []member) []member {
			var m v1.IndexManifest
			if err := json.Unmarshal(list[index].data, &m); err != nil {
				t.Fatal(err)
			}
			change(&m)
			data, err := json.Marshal(m)
			if err != nil {
				t.Fatal(err)
			}
			list[index].data = data
			return list
		}
	}
	is := func(i int, change func(*member)) func([]member) []member {
		return func(list []member) []member { change(&list[i]); return list }
	}
	drop := func(i int) func([]member) []member {
		return func(list []member) []member { return append(list[:i], list[i+1:]...) }
	}
	link := func(kind byte) func(*member) {
		return func(m *member) { m.Typeflag, m.Linkname, m.data = kind, "/etc/passwd", nil }
	}
	flip := func(m *member) { m.data = bytes.Clone(m.data); m.data[len(m.data)/2] ^= 1 }
	for _, test := range []struct {
		name   string
		change func([]member) []member
		want   string
	}{
		{"nothing in it", func([]member) []member { return nil }, "oci-layout is missing"},
		{"no version", drop(version), "oci-layout is missing"},
		{"another version", is(version, func(m *member) { m.data = []byte(`{"imageLayoutVersion":"2.0.0"}`) }), "layout version"},
		{"no index", drop(index), "index.json is missing"},
		{"index no JSON", is(index, func(m *member) { m.data = []byte("<html>") }), "index.json"},
		{"index of 5 MiB", is(index, func(m *member) { m.data = bytes.Repeat([]byte(" "), 5<<20) }), "larger than 4 MiB"},
		{"index of schema 1", edit(func(m *v1.IndexManifest) { m.SchemaVersion = 1 }), "schema version 1"},
		{"index a link", is(index, link(tar.TypeSymlink)), "not a regular file"},
		{"index a hard link", is(index, link(tar.TypeLink)), "not a regular file"},
		{"too many images", edit(func(m *v1.IndexManifest) {
			for len(m.Manifests) <= maxDescriptors {
				m.Manifests = append(m.Manifests, m.Manifests[0])
			}
		}), "more than 1000"},
		{"other digest", edit(func(m *v1.IndexManifest) {
			m.Manifests[0].Digest = v1.Hash{Algorithm: "sha512", Hex: strings.Repeat("ab", 64)}
		}), "no sha256"},
		{"negative size", edit(func(m *v1.IndexManifest) { m.Manifests[0].Size = -1 }), "negative"},
		{"other size", edit(func(m *v1.IndexManifest) { m.Manifests[0].Size++ }), "bytes instead of"},
		{"huge manifest", edit(func(m *v1.IndexManifest) { m.Manifests[0].Size = 1 << 30 }), "larger than 4 MiB"},
		{"other kind", edit(func(m *v1.IndexManifest) { m.Manifests[0].MediaType = types.OCIManifestSchema1 }), "listed as"},
		{"no kind", edit(func(m *v1.IndexManifest) { m.Manifests[0].MediaType = "text/plain" }), "neither an image nor an index"},
		{"another manifest in the descriptor", func(list []member) []member {
			list = edit(func(m *v1.IndexManifest) { m.Manifests[0].Data = []byte(`{"schemaVersion":2}`) })(list)
			flip(&list[root])
			return list
		}, "was altered"},
		{"manifest missing", drop(root), "is missing"},
		{"manifest altered", is(root, flip), "was altered"},
		{"manifest cut", is(root, func(m *member) { m.data = m.data[:100] }), "bytes instead of"},
		{"layer missing", drop(layer), "is missing"},
		{"layer altered", is(layer, flip), "was altered"},
		{"layer cut", is(layer, func(m *member) { m.data = m.data[:100] }), "bytes instead of"},
		{"layer longer", is(layer, func(m *member) { m.data = append(m.data, 0) }), "bytes instead of"},
		{"layer a device", is(layer, func(m *member) { m.Typeflag, m.data = tar.TypeChar, nil }), "not a regular file"},
		{"layer twice", func(list []member) []member { return append(list, list[layer]) }, "is twice"},
		{"layer twice by another name", func(list []member) []member {
			again := list[layer]
			again.Name = "./blobs/../" + again.Name
			return append(list, again)
		}, "is twice"},
		{"link beside", func(list []member) []member {
			return append(list, member{Header: tar.Header{Name: "../../etc/passwd", Typeflag: tar.TypeSymlink, Linkname: "/"}})
		}, "not a regular file"},
		{"too many files", func(list []member) []member {
			for i := range maxBlobs {
				list = append(list, member{Header: tar.Header{Name: fmt.Sprint("file-", i), Typeflag: tar.TypeReg}})
			}
			return list
		}, "more than 10000 files"},
	} {
		t.Run(test.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "image.tar")
			writeTar(t, file, test.change(append([]member(nil), good...)))
			refused(t, file, test.want)
		})
	}
}

// refused opens and reads an image, which has to end in an *Error.
func refused(t *testing.T, path, want string) {
	t.Helper()
	l, err := Open(path)
	if err == nil {
		err = errors.Join(l.Verify(), l.Close())
	}
	var e *Error
	if !errors.As(err, &e) || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %q", err, want)
	}
}

func TestBadFiles(t *testing.T) {
	good, err := os.ReadFile(archiveOf(t, signedImage(t)))
	if err != nil {
		t.Fatal(err)
	}
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	if _, err := z.Write(good); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		data []byte
		want string
	}{
		"empty":      {nil, "oci-layout is missing"},
		"cut":        {good[:bytes.Index(good, []byte("imageLayoutVersion"))], "ends in the middle"},
		"no archive": {bytes.Repeat([]byte("<html>"), 1000), "not a tar"},
		"compressed": {packed.Bytes(), "compressed as a whole"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "image.tar")
			if err := os.WriteFile(file, test.data, 0o644); err != nil {
				t.Fatal(err)
			}
			refused(t, file, test.want)
		})
	}
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(fifo, 0o644); err != nil {
		t.Fatal(err)
	}
	refused(t, fifo, "regular file")
}

func TestBadDirectories(t *testing.T) {
	all := signedImage(t)
	content, _, err := collect(all)
	if err != nil {
		t.Fatal(err)
	}
	layer := blobName(content[1].digest)
	outside := filepath.Join(t.TempDir(), "outside")
	for name, test := range map[string]struct {
		spoil func(dir string) error
		want  string
	}{
		"layer leads out": {func(dir string) error {
			return errors.Join(os.Rename(filepath.Join(dir, layer), outside), os.Symlink(outside, filepath.Join(dir, layer)))
		}, "path escapes"},
		"layer a pipe": {func(dir string) error {
			return errors.Join(os.Remove(filepath.Join(dir, layer)), syscall.Mkfifo(filepath.Join(dir, layer), 0o644))
		}, "not a regular file"},
		"layer a directory": {func(dir string) error {
			return errors.Join(os.Remove(filepath.Join(dir, layer)), os.Mkdir(filepath.Join(dir, layer), 0o755))
		}, "not a regular file"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := WriteLayout(t.Context(), dir, all, nil); err != nil {
				t.Fatal(err)
			}
			if err := test.spoil(dir); err != nil {
				t.Fatal(err)
			}
			l := open(t, dir)
			if err := l.Verify(); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

// FuzzOpen reads whatever is given as an archive: it has to end, within bounds.
func FuzzOpen(f *testing.F) {
	data, err := os.ReadFile(archiveOf(f, signedImage(f)))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add(data[:len(data)/3])
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte) {
		file := filepath.Join(dir, fmt.Sprint("image-", os.Getpid()))
		if err := os.WriteFile(file, data, 0o644); err != nil {
			t.Fatal(err)
		}
		l, err := Open(file)
		if err != nil {
			return
		}
		defer l.Close()
		if err := l.Verify(); err != nil {
			return
		}
		if _, err := l.Artifacts(); err != nil {
			t.Errorf("verified, and cannot be read: %v", err)
		}
	})
}
