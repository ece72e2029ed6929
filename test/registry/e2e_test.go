//go:build e2e

package registry

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/node-upgrader/node-upgrader/image/oci"
)

func begin(t *testing.T, o Options) *Registry {
	t.Helper()
	o.Progress = os.Stderr
	r, err := Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			text, _ := os.ReadFile(r.file("log"))
			t.Logf("end of the registry's log:\n%s", text[max(0, len(text)-2000):])
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func place(t *testing.T, s string) oci.Place {
	t.Helper()
	p, err := oci.ParsePlace(s)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// signed is an image with a signature by tag and one that refers to it.
func signed(t *testing.T) []oci.Artifact {
	t.Helper()
	img, err := random.Image(1<<20, 4)
	if err != nil {
		t.Fatal(err)
	}
	digest, err1 := img.Digest()
	size, err2 := img.Size()
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	note := func(text string) v1.Image {
		n, err := mutate.AppendLayers(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON),
			static.NewLayer([]byte(text), "application/vnd.dev.cosign.simplesigning.v1+json"))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	referrer, ok := mutate.Subject(note("referrer"), v1.Descriptor{MediaType: types.DockerManifestSchema2, Digest: digest, Size: size}).(v1.Image)
	if !ok {
		t.Fatal("no image")
	}
	return []oci.Artifact{
		{Tag: "v1.36.3", Name: "registry.example/upgrader:v1.36.3", Manifest: img},
		{Tag: oci.AttachedTag(digest, oci.Signature), Manifest: note("signature")},
		{Manifest: referrer},
	}
}

// An archive goes to a registry with TLS and a password, from there to another
// one, and into a layout: everything that is attached goes with it.
func TestMirror(t *testing.T) {
	from, to := begin(t, Options{}), begin(t, Options{})
	trust := filepath.Join(t.TempDir(), "ca.crt")
	one, err1 := os.ReadFile(from.CA)
	two, err2 := os.ReadFile(to.CA)
	if err := errors.Join(err1, err2, os.WriteFile(trust, append(one, two...), 0o600)); err != nil {
		t.Fatal(err)
	}
	registries, err := oci.NewRegistries(oci.RegistryOptions{CAFile: trust})
	if err != nil {
		t.Fatal(err)
	}
	all := signed(t)
	archive := filepath.Join(t.TempDir(), "upgrader.tar")
	if err := oci.WriteArchive(t.Context(), archive, all, nil); err != nil {
		t.Fatal(err)
	}
	mirror := func(source, dest string) (oci.Mirrored, error) {
		return oci.Mirror(t.Context(), oci.MirrorOptions{Source: place(t, source), Dest: place(t, dest), Registries: registries})
	}

	t.Setenv("DOCKER_CONFIG", t.TempDir())
	t.Setenv("HOME", t.TempDir())
	if _, err := mirror(archive, from.Host+"/a/upgrader:v1.36.3"); !hinted(err, "docker login") {
		t.Errorf("without a password: %v", err)
	}
	login(t, from, to)
	way := []string{archive, from.Host + "/a/upgrader:v1.36.3", to.Host + "/b/upgrader:v1.36.3", "oci:" + filepath.Join(t.TempDir(), "layout")}
	digest, err := all[0].Manifest.Digest()
	if err != nil {
		t.Fatal(err)
	}
	for i := range len(way) - 1 {
		m, err := mirror(way[i], way[i+1])
		if err != nil {
			t.Fatal(err)
		}
		if m.Digest != digest.String() || len(m.Attached) != 2 {
			t.Errorf("%s: %+v, want %s", way[i+1], m, digest)
		}
	}
	before := uploads(t, to)
	if before == 0 {
		t.Error("no upload is in the registry's log")
	}
	if m, err := mirror(way[1], way[2]); err != nil || m.Image != to.Host+"/b/upgrader@"+digest.String() {
		t.Errorf("%+v, %v", m, err)
	}
	if again := uploads(t, to) - before; again != 0 {
		t.Errorf("%d blobs were sent again", again)
	}
	if _, err := mirror(from.Host+"/a/upgrader:v0", way[3]); !errors.Is(err, oci.ErrNotFound) || !hinted(err, "name and tag") {
		t.Errorf("what is not there: %v", err)
	}
	registries, err = oci.NewRegistries(oci.RegistryOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := mirror(way[1], way[3]); !hinted(err, "--registry-ca") {
		t.Errorf("without its authority: %v", err)
	}
}

func hinted(err error, hint string) bool {
	var e *oci.Error
	return errors.As(err, &e) && strings.Contains(e.Hint, hint)
}

// login writes one Docker configuration for several registries.
func login(t *testing.T, all ...*Registry) {
	t.Helper()
	var auths []string
	for _, r := range all {
		text, err := os.ReadFile(filepath.Join(r.DockerConfig, "config.json"))
		if err != nil {
			t.Fatal(err)
		}
		auths = append(auths, strings.TrimSuffix(strings.TrimPrefix(string(text), `{"auths":{`), "}}"))
	}
	file := filepath.Join(os.Getenv("DOCKER_CONFIG"), "config.json")
	if err := os.WriteFile(file, []byte(`{"auths":{`+strings.Join(auths, ",")+"}}"), 0o600); err != nil {
		t.Fatal(err)
	}
}

func uploads(t *testing.T, r *Registry) int {
	t.Helper()
	all, err := r.Requests()
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, q := range all {
		if q.Method == "PUT" && q.Status == 201 && strings.Contains(q.Path, "/blobs/uploads/") {
			n++
		}
	}
	return n
}

// A blob that rots on the registry's disk is found out, not copied.
func TestRottenBlob(t *testing.T) {
	r := begin(t, Options{Dir: t.TempDir()})
	t.Setenv("DOCKER_CONFIG", r.DockerConfig)
	t.Setenv("HOME", t.TempDir())
	registries, err := oci.NewRegistries(oci.RegistryOptions{CAFile: r.CA})
	if err != nil {
		t.Fatal(err)
	}
	all := signed(t)
	source := place(t, r.Host+"/upgrader:v1.36.3")
	if err := registries.Push(t.Context(), source.Repository, all...); err != nil {
		t.Fatal(err)
	}
	layers, err := all[0].Manifest.(v1.Image).Layers()
	if err != nil {
		t.Fatal(err)
	}
	digest, err := layers[2].Digest()
	if err != nil {
		t.Fatal(err)
	}
	blob := filepath.Join(r.dir, "storage/docker/registry/v2/blobs/sha256", digest.Hex[:2], digest.Hex, "data")
	data, err := os.ReadFile(blob)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)/2] ^= 1
	if err := os.WriteFile(blob, data, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, dest := range []string{filepath.Join(t.TempDir(), "a.tar"), "oci:" + filepath.Join(t.TempDir(), "layout")} {
		if _, err := oci.Mirror(context.Background(), oci.MirrorOptions{Source: source, Dest: place(t, dest), Registries: registries}); err == nil {
			t.Errorf("%s has an altered layer", dest)
		}
		if _, err := oci.Open(strings.TrimPrefix(dest, "oci:")); err == nil {
			t.Errorf("%s was written", dest)
		}
	}
	sum := sha256.Sum256(data)
	if hex.EncodeToString(sum[:]) == digest.Hex {
		t.Error("nothing was altered")
	}
}
