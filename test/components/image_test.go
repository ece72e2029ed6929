package components

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
)

func TestImageFor(t *testing.T) {
	bin, root := fakeBinaries(t)
	tests := map[string]struct {
		entrypoint string
		files      []string
	}{
		"registry.k8s.io/kube-apiserver:v1.36.3":          {"/usr/local/bin/kube-apiserver", []string{"usr/local/bin/kube-apiserver"}},
		"registry.k8s.io/kube-controller-manager:v1.36.3": {"/usr/local/bin/kube-controller-manager", []string{"usr/local/bin/kube-controller-manager"}},
		"registry.k8s.io/kube-scheduler:v1.36.3":          {"/usr/local/bin/kube-scheduler", []string{"usr/local/bin/kube-scheduler"}},
		"registry.k8s.io/kube-proxy:v1.36.3":              {"/usr/local/bin/kube-proxy", []string{"sbin", "usr/local/bin/kube-proxy", "usr/sbin/iptables", "usr/sbin/iptables-variant", "usr/sbin/xtables-nft-multi"}},
		"registry.k8s.io/coredns/coredns:v1.14.2":         {"/coredns", []string{"coredns"}},
		"registry.k8s.io/pause:3.10.2":                    {"/pause", []string{"pause"}},
		"registry.k8s.io/etcd:3.6.8-0":                    {"/usr/local/bin/etcd", []string{"usr/local/bin/etcd", "usr/local/bin/etcdctl"}},
	}
	for ref, want := range tests {
		t.Run(filepath.Base(ref), func(t *testing.T) {
			im, err := imageFor(ref, bin, root)
			if err != nil {
				t.Fatal(err)
			}
			img, _ := readArchive(t, im)
			config, err := img.ConfigFile()
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]string{want.entrypoint}, config.Config.Entrypoint); diff != "" {
				t.Error(diff)
			}
			if !slices.ContainsFunc(config.Config.Env, func(s string) bool { return s == "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" }) {
				t.Errorf("environment %q has no PATH", config.Config.Env)
			}
			if diff := cmp.Diff(want.files, files(t, img)); diff != "" {
				t.Error(diff)
			}
		})
	}
	for _, ref := range []string{"registry.k8s.io/something-new:v1", "registry.k8s.io/kube-apiserver:v1"} {
		if _, err := imageFor(ref, binaries{}, root); err == nil {
			t.Errorf("%s without a binary: no error", ref)
		}
	}
}

// TestImageIDs checks that an image depends on its content and tag, and on
// nothing else: not on when and where its files were made.
func TestImageIDs(t *testing.T) {
	bin, root := fakeBinaries(t)
	id := func(ref string) v1.Hash {
		t.Helper()
		im, err := imageFor(ref, bin, root)
		if err != nil {
			t.Fatal(err)
		}
		img, err := im.build()
		if err != nil {
			t.Fatal(err)
		}
		hash, err := img.ConfigName()
		if err != nil {
			t.Fatal(err)
		}
		return hash
	}
	first := id("registry.k8s.io/kube-proxy:v1.36.3")
	bin, root = fakeBinaries(t)
	old := time.Unix(1, 0)
	if err := os.Chtimes(bin["kube-proxy"], old, old); err != nil {
		t.Fatal(err)
	}
	if again := id("registry.k8s.io/kube-proxy:v1.36.3"); again != first {
		t.Errorf("made again: image ID %s, was %s", again, first)
	}
	if other := id("registry.k8s.io/kube-proxy:v1.35.4"); other == first {
		t.Errorf("two tags share the image ID %s", other)
	}
	if err := os.WriteFile(bin["kube-proxy"], []byte("changed"), 0o755); err != nil {
		t.Fatal(err)
	}
	if changed := id("registry.k8s.io/kube-proxy:v1.36.3"); changed == first {
		t.Errorf("another binary has the same image ID %s", changed)
	}
}

func TestArchiveNames(t *testing.T) {
	bin, root := fakeBinaries(t)
	const ref = "registry.k8s.io/coredns/coredns:v1.14.2"
	im, err := imageFor(ref, bin, root)
	if err != nil {
		t.Fatal(err)
	}
	_, annotations := readArchive(t, im)
	want := map[string]string{"io.containerd.image.name": ref, "org.opencontainers.image.ref.name": "v1.14.2"}
	if diff := cmp.Diff(want, annotations); diff != "" {
		t.Error(diff)
	}
	if got := archiveName(ref); got != "coredns_v1.14.2.tar" {
		t.Errorf("archive %s", got)
	}
}

// fakeBinaries makes small files in place of the long builds.
func fakeBinaries(t *testing.T) (bin binaries, root string) {
	t.Helper()
	dir := t.TempDir()
	bin = binaries{}
	for _, name := range []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "coredns", "pause", "etcd", "etcdctl", iptablesVariant} {
		bin[name] = filepath.Join(dir, name)
		if err := os.WriteFile(bin[name], []byte("binary "+name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	root = filepath.Join(dir, "root")
	if err := os.MkdirAll(filepath.Join(root, "usr/sbin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "usr/sbin/xtables-nft-multi"), []byte("iptables"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]string{"sbin": "usr/sbin", "usr/sbin/iptables": iptablesVariant} {
		if err := os.Symlink(to, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	return bin, root
}

// readArchive writes the image's archive, unpacks it, checks every digest and
// reads it as an OCI layout.
func readArchive(t *testing.T, im image) (v1.Image, map[string]string) {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "image.tar")
	if err := im.writeArchive(file); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	for r := tar.NewReader(f); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		to := filepath.Join(dir, "layout", header.Name)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, data, 0o644); err != nil {
			t.Fatal(err)
		}
		if sum := sha256.Sum256(data); filepath.Dir(header.Name) == "blobs/sha256" && filepath.Base(to) != hex.EncodeToString(sum[:]) {
			t.Errorf("blob %s has the digest %x", header.Name, sum)
		}
	}
	index, err := layout.ImageIndexFromPath(filepath.Join(dir, "layout"))
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(manifest.Manifests) != 1 {
		t.Fatalf("%d images in the archive", len(manifest.Manifests))
	}
	img, err := index.Image(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	return img, manifest.Manifests[0].Annotations
}

// files lists what is in the image besides directories, which must come before
// what is in them.
func files(t *testing.T, img v1.Image) []string {
	t.Helper()
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, l := range layers {
		r, err := l.Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		have := map[string]bool{".": true}
		for tr := tar.NewReader(r); ; {
			header, err := tr.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			name := filepath.Clean(header.Name)
			if !have[filepath.Dir(name)] {
				t.Errorf("%s comes before its directory", name)
			}
			have[name] = true
			if header.Typeflag != tar.TypeDir {
				out = append(out, name)
			}
			if header.Typeflag == tar.TypeReg && header.Mode != 0o755 {
				t.Errorf("%s has mode %o", name, header.Mode)
			}
		}
	}
	slices.Sort(out)
	return out
}
