package image

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// What does not fit together in a layout is refused by name, though each file is
// what bundle.json says.
func TestBadImages(t *testing.T) {
	for what, c := range map[string]struct {
		spoil func(t *testing.T, dir string, m *Manifest)
		want  string
	}{
		"a blob too many": {func(t *testing.T, dir string, m *Manifest) { addBlob(t, dir, m, []byte("surplus")) }, "is no part of an image"},
		"a layer missing": {func(t *testing.T, dir string, m *Manifest) {
			drop(t, dir, m, imagesBlobs+strings.TrimPrefix(digestOf([]byte("apiserver amd64")), "sha256:"))
		}, "is not in the bundle with 15 bytes"},
		"no index": {func(t *testing.T, dir string, m *Manifest) { drop(t, dir, m, imagesIndex) }, "is missing"},
		"a name that is none": {func(t *testing.T, dir string, m *Manifest) {
			reword(t, dir, m, imagesIndex, `"io.containerd.image.name":"registry.k8s.io/pause:3.10.2"`, `"io.containerd.image.name":"pause"`)
		}, `"pause", not registry/repository:tag`},
		"a name twice": {func(t *testing.T, dir string, m *Manifest) {
			reword(t, dir, m, imagesIndex, `"io.containerd.image.name":"registry.k8s.io/pause:3.10.2"`, `"io.containerd.image.name":"registry.k8s.io/kube-apiserver:v1.36.3"`)
		}, "kube-apiserver:v1.36.3 twice"},
		"another layout":     {func(t *testing.T, dir string, m *Manifest) { reword(t, dir, m, imagesLayout, "1.0.0", "2.0.0") }, `version "2.0.0"`},
		"an index of rubble": {func(t *testing.T, dir string, m *Manifest) { reword(t, dir, m, imagesIndex, "{", "[") }, "cannot be read"},
	} {
		t.Run(what, func(t *testing.T) {
			b, err := buildWithImages(t, ContainerImageOptions{List: imageNames(), From: []string{archiveDir(t)}})
			if err != nil {
				t.Fatal(err)
			}
			m := b.Manifest
			c.spoil(t, b.Dir, &m)
			writeManifest(t, b.Dir, m)
			spoiled, err := open(b.Dir, "amd64")
			if err != nil {
				t.Fatal(err)
			}
			_, err = spoiled.Images(context.Background())
			var bad *BadBundleError
			if !errors.As(err, &bad) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

func addBlob(t *testing.T, dir string, m *Manifest, data []byte) {
	t.Helper()
	f := imageFile("blobs/sha256/" + strings.TrimPrefix(digestOf(data), "sha256:"))
	f.Size, f.SHA256 = int64(len(data)), strings.TrimPrefix(digestOf(data), "sha256:")
	write(t, filepath.Join(dir, f.Path), data)
	m.Files = append(m.Files, f)
}

func drop(t *testing.T, dir string, m *Manifest, path string) {
	t.Helper()
	if err := os.Remove(filepath.Join(dir, path)); err != nil {
		t.Fatal(err)
	}
	var left []File
	for _, f := range m.Files {
		if f.Path != path {
			left = append(left, f)
		}
	}
	m.Files = left
}

func reword(t *testing.T, dir string, m *Manifest, path, from, to string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, path))
	if err != nil {
		t.Fatal(err)
	}
	changed := strings.Replace(string(data), from, to, 1)
	if changed == string(data) {
		t.Fatalf("%s has no %s", path, from)
	}
	write(t, filepath.Join(dir, path), []byte(changed))
	for i := range m.Files {
		if m.Files[i].Path == path {
			m.Files[i].Size, m.Files[i].SHA256 = int64(len(changed)), strings.TrimPrefix(digestOf([]byte(changed)), "sha256:")
		}
	}
}

// What bundle.json may say of images, and what not.
func TestValidateImages(t *testing.T) {
	blob := strings.Repeat("a", 64)
	for what, c := range map[string]struct {
		change func(*Manifest)
		want   string
	}{
		"good":               {func(*Manifest) {}, ""},
		"a place":            {func(m *Manifest) { m.Files[len(m.Files)-1].Place = "/usr/bin/x" }, "an image has none on the host"},
		"another name":       {func(m *Manifest) { m.Files[len(m.Files)-1].SHA256 = strings.Repeat("b", 64) }, "is no file of an OCI layout"},
		"another component":  {func(m *Manifest) { m.Files[len(m.Files)-1].Component = Runc }, "does not belong to it"},
		"the old schema":     {func(m *Manifest) { m.SchemaVersion = SchemaVersion }, "has schema version 2"},
		"no place elsewhere": {func(m *Manifest) { m.Files[0].Place = "" }, "not a clean absolute path"},
		"another version":    {func(m *Manifest) { m.Components[len(m.Components)-1].Version = "v1.36.4" }, "has images v1.36.4"},
	} {
		data, err := os.ReadFile(filepath.Join(fixture(t, t.TempDir(), small), ManifestName))
		if err != nil {
			t.Fatal(err)
		}
		var m Manifest
		if err := json.Unmarshal(data, &m); err != nil {
			t.Fatal(err)
		}
		m.SchemaVersion = SchemaVersionImages
		m.Components = append(m.Components, Component{Images, "v1.36.3"})
		f := imageFile("blobs/sha256/" + blob)
		f.SHA256, f.Size = blob, 3
		m.Files = append(m.Files, f)
		c.change(&m)
		dir := t.TempDir()
		writeManifest(t, dir, m)
		if data, err = os.ReadFile(filepath.Join(dir, ManifestName)); err != nil {
			t.Fatal(err)
		}
		_, err = decode(data)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", what, err, c.want)
		}
	}
	if err := validate(Manifest{SchemaVersion: SchemaVersionImages, Architecture: runtime.GOARCH, KubernetesVersion: "v1.36.3"}); err == nil {
		t.Error("a manifest of nothing is good")
	}
}
