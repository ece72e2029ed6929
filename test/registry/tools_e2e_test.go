//go:build e2e

package registry

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/random"

	"github.com/node-upgrader/node-upgrader/image/oci"
	"github.com/node-upgrader/node-upgrader/test/debian"
)

const crane = "github.com/google/go-containerregistry/cmd/crane@v0.22.1"

// The commands of docs/air-gap.md for skopeo and crane carry an image of several
// architectures and its signature to a registry with TLS and a password, by way of
// files, and the digests stay the same.
func TestOtherTools(t *testing.T) {
	if err := debian.Install(t.Context(), os.Stderr, "skopeo"); err != nil {
		t.Fatal(err)
	}
	r := begin(t, Options{})
	index, err := random.Index(1<<16, 2, 2)
	if err != nil {
		t.Fatal(err)
	}
	digest, err := index.Digest()
	if err != nil {
		t.Fatal(err)
	}
	signature := signed(t)[1]
	signature.Tag = oci.AttachedTag(digest, oci.Signature)
	t.Setenv("DOCKER_CONFIG", r.DockerConfig)
	t.Setenv("REGISTRY_AUTH_FILE", filepath.Join(r.DockerConfig, "config.json"))
	t.Setenv("SSL_CERT_FILE", r.CA)
	registries, err := oci.NewRegistries(oci.RegistryOptions{CAFile: r.CA})
	if err != nil {
		t.Fatal(err)
	}
	source := r.Host + "/build/upgrader"
	all := []oci.Artifact{signature, {Tag: "v1.36.3", Name: source + ":v1.36.3", Manifest: index}}
	if err := registries.Push(t.Context(), place(t, source).Repository, all...); err != nil {
		t.Fatal(err)
	}
	check := func(repository string) {
		t.Helper()
		for _, want := range all {
			got, err := registries.Find(t.Context(), place(t, repository).Repository, want.Tag, "")
			if err != nil {
				t.Error(err)
				continue
			}
			a, err1 := got.Manifest.Digest()
			b, err2 := want.Manifest.Digest()
			if err := errors.Join(err1, err2); err != nil || a != b {
				t.Errorf("%s:%s is %s, not %s (%v)", repository, want.Tag, a, b, err)
			}
		}
	}

	t.Run("skopeo", func(t *testing.T) {
		dir, to := t.TempDir(), r.Host+"/skopeo/upgrader"
		copies := func(args ...string) {
			t.Helper()
			command(t, dir, nil, "skopeo", append([]string{"copy", "--all", "--preserve-digests"}, args...)...)
		}
		copies("docker://"+source+":v1.36.3", "oci-archive:upgrader.tar:v1.36.3")
		copies("docker://"+source+":"+signature.Tag, "oci-archive:signature.tar")
		copies("oci-archive:upgrader.tar:v1.36.3", "docker://"+to+":v1.36.3")
		copies("oci-archive:signature.tar", "docker://"+to+":"+signature.Tag)
		check(to)
		// Its archives and ours are the same thing.
		if m, err := oci.Mirror(t.Context(), oci.MirrorOptions{
			Source: place(t, filepath.Join(dir, "upgrader.tar")), Dest: place(t, r.Host+"/again/upgrader:v1.36.3"), Registries: registries,
		}); err != nil || m.Digest != digest.String() {
			t.Errorf("skopeo's archive: %+v, %v", m, err)
		}
		ours := filepath.Join(dir, "ours.tar")
		if err := oci.WriteArchive(t.Context(), ours, all, nil); err != nil {
			t.Fatal(err)
		}
		copies("oci-archive:ours.tar:v1.36.3", "docker://"+r.Host+"/ours/upgrader:v1.36.3")
		if got := command(t, dir, nil, "skopeo", "inspect", "--format", "{{.Digest}}", "docker://"+to+"@"+digest.String()); got != digest.String() {
			t.Errorf("skopeo inspect: %s", got)
		}
	})
	t.Run("crane", func(t *testing.T) {
		dir, to := t.TempDir(), r.Host+"/crane/upgrader"
		run := func(args ...string) string {
			t.Helper()
			return command(t, dir, []string{"GOFLAGS=-mod=mod"}, "go", append([]string{"run", crane}, args...)...)
		}
		run("pull", "--format=oci", source+":v1.36.3", "upgrader")
		run("pull", "--format=oci", source+":"+signature.Tag, "signature")
		run("push", "upgrader", to+":v1.36.3")
		run("push", "signature", to+":"+signature.Tag)
		check(to)
		if got := run("digest", to+":v1.36.3"); !strings.HasSuffix(got, digest.Hex) {
			t.Errorf("crane digest: %s", got)
		}
	})
}
