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
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
	ocivalidate "github.com/google/go-containerregistry/pkg/v1/validate"

	"github.com/node-upgrader/node-upgrader/image/oci"
)

func elfUpgrader(t *testing.T) string {
	t.Helper()
	return elfFor(t, runtime.GOARCH)
}

func elfFor(t *testing.T, arch string) string {
	t.Helper()
	machine, _ := machines(arch)
	name := filepath.Join(t.TempDir(), "upgrader")
	write(t, name, program(t, machine, "upgrader"))
	return name
}

// otherArch is an architecture that this machine is not.
func otherArch() string {
	if runtime.GOARCH == "arm64" {
		return "amd64"
	}
	return "arm64"
}

func foreignBundle(t *testing.T, change func(*Manifest)) *Bundle {
	t.Helper()
	dir := fixture(t, t.TempDir(), small)
	edit(func(m *Manifest) {
		m.Architecture = otherArch()
		change(m)
	})(t, dir)
	b, err := OpenAny(dir)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

const testRef = "registry.example.org/node/upgrader:v1.36.3"

func TestPack(t *testing.T) {
	for _, c := range []Compression{None, Gzip, Zstd} {
		t.Run(string(c), func(t *testing.T) {
			b := openFixture(t)
			dir := t.TempDir()
			o := PackOptions{Parts: []Part{{b, elfUpgrader(t)}}, Compression: c, Temp: dir}
			var last, total int64
			o.Progress = func(d, n int64) { last, total = d, n }
			digest := packTo(t, filepath.Join(dir, "a.tar"), o)
			if last == 0 || last != total {
				t.Errorf("progress ended at %d of %d", last, total)
			}
			a := find(t, filepath.Join(dir, "a.tar"))
			if d, err := a.Manifest.Digest(); err != nil || d.String() != digest || a.Name != testRef {
				t.Errorf("archive has %s %s, %v", a.Name, d, err)
			}
			compareImage(t, a.Manifest.(v1.Image), o.Parts[0], c)

			// The same again is the same bytes, wherever the bundle lies.
			o.Parts[0].Bundle = mustOpen(t, fixture(t, t.TempDir(), small))
			packTo(t, filepath.Join(dir, "b.tar"), o)
			if !bytes.Equal(read(t, dir, "a.tar"), read(t, dir, "b.tar")) {
				t.Error("not the same bytes")
			}
			if diff := cmp.Diff([]string{"a.tar", "b.tar"}, names(t, dir)); diff != "" {
				t.Errorf("left:\n%s", diff)
			}
		})
	}
}

func packTo(t *testing.T, file string, o PackOptions) string {
	t.Helper()
	p, err := Pack(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	err = oci.WriteArchive(context.Background(), file, []oci.Artifact{{Tag: "v1.36.3", Name: testRef, Manifest: p.Manifest}}, nil)
	if err := errors.Join(err, p.Close()); err != nil {
		t.Fatal(err)
	}
	return p.Digest
}

func find(t *testing.T, file string) oci.Artifact {
	t.Helper()
	l, err := oci.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := l.Verify(); err != nil {
		t.Error(err)
	}
	a, err := l.Find("v1.36.3")
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestPackArchitectures(t *testing.T) {
	dir := t.TempDir()
	here := Part{openFixture(t), elfUpgrader(t)}
	there := Part{foreignBundle(t, func(*Manifest) {}), elfFor(t, otherArch())}
	created := time.Date(2026, 2, 3, 4, 5, 6, 0, time.UTC)
	o := PackOptions{Parts: []Part{here, there}, Compression: Zstd, Temp: dir, Created: created, Revision: "0123abc"}
	digest := packTo(t, filepath.Join(dir, "a.tar"), o)
	o.Parts = []Part{there, here}
	if again := packTo(t, filepath.Join(dir, "b.tar"), o); again != digest {
		t.Errorf("in another order another digest: %s, %s", digest, again)
	}
	index, ok := find(t, filepath.Join(dir, "a.tar")).Manifest.(v1.ImageIndex)
	if !ok {
		t.Fatal("no index")
	}
	list, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if list.MediaType != types.OCIImageIndex || list.Annotations["org.opencontainers.image.created"] != "2026-02-03T04:05:06Z" ||
		list.Annotations["org.opencontainers.image.revision"] != "0123abc" || list.Annotations[VersionLabel] != "v1.36.3" {
		t.Errorf("index: %+v", list)
	}
	about, err := Describe(index)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(About{
		Kubernetes: "v1.36.3", Architectures: []string{list.Manifests[0].Platform.Architecture, list.Manifests[1].Platform.Architecture},
		Bundles: map[string]string{runtime.GOARCH: here.Bundle.Digest, otherArch(): there.Bundle.Digest},
	}, about); diff != "" {
		t.Error(diff)
	}
	found := map[string]bool{}
	for _, d := range list.Manifests {
		img, err := index.Image(d.Digest)
		if err != nil {
			t.Fatal(err)
		}
		found[d.Platform.Architecture] = true
		p := here
		if d.Platform.Architecture == otherArch() {
			p = there
		}
		compareImage(t, img, p, Zstd)
		m, err := img.Manifest()
		if err != nil || m.Annotations[DigestLabel] != p.Bundle.Digest || m.Annotations["org.opencontainers.image.revision"] != "0123abc" {
			t.Errorf("annotations %v, %v", m.Annotations, err)
		}
	}
	if len(found) != 2 {
		t.Errorf("architectures: %v", found)
	}
}

func compareImage(t *testing.T, img v1.Image, p Part, c Compression) {
	t.Helper()
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if config.Architecture != p.Bundle.Manifest.Architecture || config.OS != "linux" || config.Config.Entrypoint[0] != "/upgrader" ||
		config.Config.Labels[DigestLabel] != p.Bundle.Digest || config.Config.Labels[VersionLabel] != "v1.36.3" {
		t.Errorf("config: %+v", config)
	}
	layers, err := img.Layers()
	if err != nil || len(layers) != len(p.Bundle.Manifest.Components)+2 || len(layers) != len(config.RootFS.DiffIDs) {
		t.Fatalf("%d layers, %d in the configuration, %v", len(layers), len(config.RootFS.DiffIDs), err)
	}
	if c == Gzip { // it takes no other
		if err := ocivalidate.Image(img); err != nil {
			t.Error(err)
		}
	}
	want := map[string]string{
		"upgrader":           "0755 " + sumOf(t, p.Upgrader),
		"bundle/bundle.json": "0644 " + strings.TrimPrefix(p.Bundle.Digest, "sha256:"),
	}
	for _, f := range p.Bundle.Manifest.Files {
		want["bundle/"+f.Path] = f.Mode.String() + " " + f.SHA256
	}
	got := map[string]string{}
	for i, l := range layers {
		if m, err := l.MediaType(); err != nil || m != c.mediaType() {
			t.Errorf("layer is %q, %v", m, err)
		}
		readLayer(t, l, c, config.RootFS.DiffIDs[i], got)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

// readLayer unpacks a layer and compares its bytes with the configuration's
// digest of them.
func readLayer(t *testing.T, l v1.Layer, c Compression, diff v1.Hash, got map[string]string) {
	t.Helper()
	packed, err := l.Compressed()
	if err != nil {
		t.Fatal(err)
	}
	bare, err := c.reader(packed)
	if err != nil {
		t.Fatal(err)
	}
	defer bare.Close()
	whole := sha256.New()
	tee := io.TeeReader(bare, whole)
	for r := tar.NewReader(tee); ; {
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
		if h.Typeflag == tar.TypeDir {
			continue
		}
		hash := sha256.New()
		if _, err := io.Copy(hash, r); err != nil {
			t.Fatal(err)
		}
		got[h.Name] = fmt.Sprintf("%04o %s", h.Mode, hex.EncodeToString(hash.Sum(nil)))
	}
	if _, err := io.Copy(io.Discard, tee); err != nil {
		t.Fatal(err)
	}
	if sum := hex.EncodeToString(whole.Sum(nil)); sum != diff.Hex {
		t.Errorf("layer unpacks to %s, the configuration says %s", sum, diff)
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

func TestPackRefuses(t *testing.T) {
	b := openFixture(t)
	machine := elf.EM_AARCH64
	if runtime.GOARCH == "arm64" {
		machine = elf.EM_X86_64
	}
	other := filepath.Join(t.TempDir(), "upgrader")
	write(t, other, program(t, machine, "x"))
	older := foreignBundle(t, func(m *Manifest) {
		m.KubernetesVersion = "v1.35.4"
		for i, c := range m.Components {
			if strings.HasPrefix(c.Name, "kube") {
				m.Components[i].Version = "v1.35.4"
			}
		}
	})
	tests := []struct {
		name  string
		parts []Part
		want  string
	}{
		{"nothing", nil, "no bundle"},
		{"no upgrader", []Part{{b, filepath.Join(b.Dir, "none")}}, "open the upgrader"},
		{"foreign upgrader", []Part{{b, other}}, "binary is for"},
		{"twice", []Part{{b, elfUpgrader(t)}, {b, elfUpgrader(t)}}, "two bundles for"},
		{"another version", []Part{{b, elfUpgrader(t)}, {older, other}}, "an image is of one version"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			_, err := Pack(context.Background(), PackOptions{Parts: test.parts, Temp: dir})
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
			if left := names(t, dir); left != nil {
				t.Errorf("left: %v", left)
			}
		})
	}
}

// The commit is what Go has put into the executable.
func TestPackRevision(t *testing.T) {
	self, err := openUpgrader(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	defer self.Close()
	if r := revision(self); r != "" { // go test does not stamp
		t.Errorf("revision %q of a test binary", r)
	}
	mine := labels(PackOptions{Revision: "abc"}, part{openFixture(t), self})
	if mine["org.opencontainers.image.revision"] != "abc" {
		t.Errorf("labels: %v", mine)
	}
}

// What is not the upgrader's image is not taken for it.
func TestDescribeRefuses(t *testing.T) {
	other, err := mutate.Config(empty.Image, v1.Config{Entrypoint: []string{"/pause"}, Labels: map[string]string{VersionLabel: "v3.10.1"}})
	if err != nil {
		t.Fatal(err)
	}
	label := func(version string) v1.Image {
		img, err := mutate.Config(empty.Image, v1.Config{Entrypoint: []string{"/upgrader"}, Labels: map[string]string{VersionLabel: version}})
		if err != nil {
			t.Fatal(err)
		}
		return img
	}
	join := func(list ...v1.Image) v1.ImageIndex {
		var index v1.ImageIndex = empty.Index
		for _, img := range list {
			index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: img})
		}
		return index
	}
	for name, test := range map[string]struct {
		manifest oci.Manifest
		want     string
	}{
		"other":        {other, "not an image of the upgrader"},
		"dev":          {label("dev"), "not an image of the upgrader"},
		"empty":        {empty.Index, "no image in it"},
		"two versions": {join(label("v1.35.4"), label("v1.36.3")), "v1.36.3 for"},
	} {
		if _, err := Describe(test.manifest); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %q", name, err, test.want)
		}
	}
}
