//go:build e2e

package registry

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"github.com/node-upgrader/node-upgrader/image"
	"github.com/node-upgrader/node-upgrader/image/oci"
	"github.com/node-upgrader/node-upgrader/test/components"
	"github.com/node-upgrader/node-upgrader/test/debian"
)

// product is the program, a bundle and its image, made by the program itself.
type product struct{ upgrader, bundle, archive string }

func (p product) run(t *testing.T, args ...string) {
	t.Helper()
	command(t, "", nil, p.upgrader, args...)
}

func command(t *testing.T, dir string, env []string, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, stderr.String())
	}
	return strings.TrimSpace(string(out))
}

func checkout(t *testing.T) string {
	t.Helper()
	return filepath.Dir(command(t, "", nil, "go", "env", "GOMOD"))
}

const productRef = "registry.example/upgrader:v1.36.3"

// build makes the product in dir as `make image-content` does.
func build(t *testing.T, dir string) product {
	t.Helper()
	set, err := components.Lookup("1.36")
	if err != nil {
		t.Fatal(err)
	}
	built, err := components.Build(t.Context(), set, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	p := product{filepath.Join(dir, "upgrader"), filepath.Join(dir, "bundle"), filepath.Join(t.TempDir(), "upgrader.tar")}
	command(t, checkout(t), []string{"CGO_ENABLED=0"}, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", p.upgrader, "./cmd/upgrader")
	p.run(t, "bundle", "build", "--from", filepath.Dir(built.Bin), "--out", p.bundle)
	p.run(t, "bundle", "image", "--bundle", p.bundle, "--ref", productRef, "--compression", "gzip", "--out", p.archive)
	return p
}

// TestDockerfile builds the Dockerfile with buildah, which needs no daemon and no
// registry for an image from scratch, and compares the files with those of the
// archive that the program writes.
func TestDockerfile(t *testing.T) {
	if err := debian.Install(t.Context(), os.Stderr, "buildah"); err != nil {
		t.Fatal(err)
	}
	// The context is a checkout with all that may lie around in one.
	context := t.TempDir()
	for _, name := range []string{"Dockerfile", ".dockerignore"} {
		data, err := os.ReadFile(filepath.Join(checkout(t), name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(context, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	content := filepath.Join(context, "out", "image")
	if err := errors.Join(os.MkdirAll(content, 0o755), os.WriteFile(filepath.Join(context, "out", "notes"), nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	p := build(t, content)
	for _, surplus := range []string{"image/.env", "image/upgrader.old", "image/other/file"} {
		name := filepath.Join(context, "out", surplus)
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte("secret"), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	storage := t.TempDir()
	buildah := func(args ...string) {
		t.Helper()
		command(t, context, nil, "buildah", append([]string{"--storage-driver", "vfs", "--root", filepath.Join(storage, "root"), "--runroot", filepath.Join(storage, "run")}, args...)...)
	}
	archive := filepath.Join(t.TempDir(), "buildah.tar")
	buildah("build", "--isolation", "chroot", "--build-arg", "VERSION=v1.36.3", "--tag", "built", ".")
	buildah("push", "built", "oci-archive:"+archive+":v1.36.3")

	ours, theirs := only(t, p.archive), only(t, archive)
	if diff := cmp.Diff(contents(t, ours), contents(t, theirs)); diff != "" {
		t.Errorf("the files of the archive (-) and of the Dockerfile's image (+):\n%s", diff)
	}
	about, err := image.Describe(theirs)
	if err != nil || about.Kubernetes != "v1.36.3" {
		t.Errorf("the Dockerfile's image: %+v, %v", about, err)
	}
	a, err1 := ours.ConfigFile()
	b, err2 := theirs.ConfigFile()
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(a.Config.Entrypoint, b.Config.Entrypoint); diff != "" || a.Config.User != b.Config.User {
		t.Errorf("entry point %s, user %q and %q", diff, a.Config.User, b.Config.User)
	}
	for _, label := range []string{"title", "description", "licenses", "source", "url", "documentation", "vendor", "version"} {
		if key := "org.opencontainers.image." + label; a.Config.Labels[key] != b.Config.Labels[key] {
			t.Errorf("label %s: %q and %q", label, a.Config.Labels[key], b.Config.Labels[key])
		}
	}
}

// only is the one image of an archive.
func only(t *testing.T, file string) v1.Image {
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
	a, err := l.Find("v1.36.3")
	if err != nil {
		t.Fatal(err)
	}
	img, ok := a.Manifest.(v1.Image)
	if !ok {
		t.Fatalf("%s has an index", file)
	}
	return img
}

// contents are an image's files: kind, mode, owner and sha256 by path.
func contents(t *testing.T, img v1.Image) map[string]string {
	t.Helper()
	all := map[string]string{}
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range layers {
		if m, err := l.MediaType(); err != nil || strings.HasSuffix(string(m), "zstd") {
			t.Fatalf("layer is %q, %v: this test reads gzip", m, err)
		}
	}
	flat := mutate.Extract(img)
	defer flat.Close()
	for r := tar.NewReader(flat); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.New()
		if _, err := io.Copy(sum, r); err != nil {
			t.Fatal(err)
		}
		name := strings.Trim(h.Name, "/")
		if h.Typeflag == tar.TypeDir {
			all[name] = fmt.Sprintf("directory %04o %d:%d", h.Mode&0o7777, h.Uid, h.Gid)
			continue
		}
		all[name] = fmt.Sprintf("%c %04o %d:%d %s", h.Typeflag, h.Mode&0o7777, h.Uid, h.Gid, hex.EncodeToString(sum.Sum(nil)))
	}
}
