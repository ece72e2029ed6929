package image

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	ocivalidate "github.com/google/go-containerregistry/pkg/v1/validate"
)

func elfUpgrader(t *testing.T) string {
	t.Helper()
	machine, _ := machines(runtime.GOARCH)
	name := filepath.Join(t.TempDir(), "upgrader")
	write(t, name, program(t, machine, "upgrader"))
	return name
}

func TestWriteArchive(t *testing.T) {
	for _, zip := range []bool{false, true} {
		t.Run(fmt.Sprintf("gzip %v", zip), func(t *testing.T) {
			b := openFixture(t)
			dir := t.TempDir()
			o := ArchiveOptions{Bundle: b, Upgrader: elfUpgrader(t), Ref: "registry.example.org/node/upgrader:v1.36.3", Out: filepath.Join(dir, "a.tar"), Gzip: zip}
			var last, total int64
			o.Progress = func(d, n int64) { last, total = d, n }
			digest, err := WriteArchive(context.Background(), o)
			if err != nil {
				t.Fatal(err)
			}
			if last == 0 || last != total {
				t.Errorf("progress ended at %d of %d", last, total)
			}
			img := readArchive(t, o.Out, o.Ref, digest)
			compareImage(t, img, o)

			// The same again is the same bytes, wherever the bundle lies.
			o.Out = filepath.Join(dir, "b.tar")
			o.Bundle = mustOpen(t, fixture(t, t.TempDir(), small))
			if _, err := WriteArchive(context.Background(), o); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(read(t, dir, "a.tar"), read(t, dir, "b.tar")) {
				t.Error("not the same bytes")
			}
			if diff := cmp.Diff([]string{"a.tar", "b.tar"}, names(t, dir)); diff != "" {
				t.Errorf("left:\n%s", diff)
			}
		})
	}
}

// readArchive unpacks an archive and reads it as an OCI layout.
func readArchive(t *testing.T, archive, ref, digest string) v1.Image {
	t.Helper()
	dir := t.TempDir()
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Uid != 0 || h.Gid != 0 || !h.ModTime.Equal(time.Unix(0, 0)) {
			t.Errorf("%s: owner %d:%d, %v", h.Name, h.Uid, h.Gid, h.ModTime)
		}
		if h.Typeflag == tar.TypeReg {
			data, err := io.ReadAll(r)
			if err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(dir, h.Name), data)
		}
	}
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	m, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Manifests) != 1 || m.Manifests[0].Digest.String() != digest {
		t.Fatalf("index: %+v", m.Manifests)
	}
	if diff := cmp.Diff(map[string]string{
		"io.containerd.image.name": ref, "org.opencontainers.image.ref.name": "v1.36.3",
	}, m.Manifests[0].Annotations); diff != "" {
		t.Error(diff)
	}
	img, err := index.Image(m.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func compareImage(t *testing.T, img v1.Image, o ArchiveOptions) {
	t.Helper()
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if config.Architecture != runtime.GOARCH || config.OS != "linux" || config.Config.Entrypoint[0] != "/upgrader" ||
		config.Config.Labels[DigestLabel] != o.Bundle.Digest || !config.Created.Equal(time.Unix(0, 0)) {
		t.Errorf("config: %+v", config)
	}
	layers, err := img.Layers()
	if err != nil || len(layers) != len(o.Bundle.Manifest.Components)+2 {
		t.Errorf("%d layers, %v", len(layers), err)
	}
	for _, l := range layers {
		checkLayer(t, l)
	}
	if o.Gzip { // it takes no other
		if err := ocivalidate.Image(img); err != nil {
			t.Error(err)
		}
	}
	want := map[string]string{
		"upgrader":           "0755 " + sumOf(t, o.Upgrader),
		"bundle/bundle.json": "0644 " + strings.TrimPrefix(o.Bundle.Digest, "sha256:"),
	}
	for _, f := range o.Bundle.Manifest.Files {
		want["bundle/"+f.Path] = f.Mode.String() + " " + f.SHA256
	}
	got := map[string]string{}
	flat := mutate.Extract(img)
	defer flat.Close()
	for r := tar.NewReader(flat); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeDir {
			continue
		}
		hash := sha256.New()
		if _, err := io.Copy(hash, r); err != nil {
			t.Fatal(err)
		}
		got[h.Name] = fmt.Sprintf("%04o %s", h.Mode, hex.EncodeToString(hash.Sum(nil)))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

// checkLayer compares what a layer says of itself with its bytes.
func checkLayer(t *testing.T, l v1.Layer) {
	t.Helper()
	digest, err1 := l.Digest()
	size, err2 := l.Size()
	r, err3 := l.Compressed()
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	data, err := io.ReadAll(r)
	if err != nil || digestOf(data) != digest.String() || int64(len(data)) != size {
		t.Errorf("layer %s is not what it says: %v", digest, err)
	}
}

func sumOf(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimPrefix(digestOf(data), "sha256:")
}

func TestWriteArchiveRefuses(t *testing.T) {
	b := openFixture(t)
	foreign := elf.EM_AARCH64
	if runtime.GOARCH == "arm64" {
		foreign = elf.EM_X86_64
	}
	other := filepath.Join(t.TempDir(), "upgrader")
	write(t, other, program(t, foreign, "x"))
	tests := []struct {
		name, upgrader, ref, want string
	}{
		{"short name", elfUpgrader(t), "upgrader:v1", "registry/repository:tag"},
		{"no tag", elfUpgrader(t), "example.org/upgrader", "registry/repository:tag"},
		{"no upgrader", filepath.Join(b.Dir, "none"), "example.org/upgrader:v1", "open the upgrader"},
		{"foreign upgrader", other, "example.org/upgrader:v1", "the upgrader: binary is for"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			_, err := WriteArchive(context.Background(), ArchiveOptions{Bundle: b, Upgrader: test.upgrader, Ref: test.ref, Out: filepath.Join(dir, "a.tar")})
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
			if left := names(t, dir); left != nil {
				t.Errorf("left: %v", left)
			}
		})
	}
}
