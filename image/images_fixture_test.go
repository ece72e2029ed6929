package image

import (
	"archive/tar"
	"debug/elf"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// containerImage is an image with two layers, the first the same in all.
func containerImage(t testing.TB, text, arch string) v1.Image {
	t.Helper()
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	img, err := mutate.ConfigFile(img, &v1.ConfigFile{OS: "linux", Architecture: arch, RootFS: v1.RootFS{Type: "layers"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, layer := range []string{"base", text + " " + arch} {
		if img, err = mutate.AppendLayers(img, static.NewLayer([]byte(layer), types.OCIUncompressedLayer)); err != nil {
			t.Fatal(err)
		}
	}
	return img
}

// multi is an image for two architectures.
func multi(t testing.TB, text string) v1.ImageIndex {
	t.Helper()
	index := v1.ImageIndex(empty.Index)
	for _, arch := range []string{"arm64", "amd64"} {
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add: containerImage(t, text, arch), Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}},
		})
	}
	return index
}

func tarDir(t testing.TB, dir, out string) {
	t.Helper()
	f, err := os.Create(out)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := tar.NewWriter(f)
	if err := errors.Join(w.AddFS(os.DirFS(dir)), w.Close()); err != nil {
		t.Fatal(err)
	}
}

// archiveDir has an image in each of the ways in which they may lie there.
func archiveDir(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "README"), []byte("not looked at"))
	scratch := filepath.Join(t.TempDir(), "layout")
	path, err := layout.Write(scratch, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	named := func(key, n string) layout.Option { return layout.WithAnnotations(map[string]string{key: n}) }
	if err := path.AppendIndex(multi(t, "apiserver"), named(nameAnnotation, "registry.k8s.io/kube-apiserver:v1.36.3")); err != nil {
		t.Fatal(err)
	}
	tarDir(t, scratch, filepath.Join(dir, "apiserver.tar"))
	path, err = layout.Write(filepath.Join(dir, "pause"), empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	if err := path.AppendImage(containerImage(t, "pause", "amd64"), named(refAnnotation, "registry.k8s.io/pause:3.10.2")); err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag("registry.k8s.io/coredns/coredns:v1.14.2")
	if err != nil {
		t.Fatal(err)
	}
	if err := tarball.WriteToFile(filepath.Join(dir, "coredns.tar"), tag, containerImage(t, "coredns", "amd64")); err != nil {
		t.Fatal(err)
	}
	return dir
}

func imageNames() []string {
	return []string{"registry.k8s.io/kube-apiserver:v1.36.3", "registry.k8s.io/pause:3.10.2", "registry.k8s.io/coredns/coredns:v1.14.2"}
}

// buildWithImages makes a bundle for amd64, whatever this machine is.
func buildWithImages(t testing.TB, o ContainerImageOptions) (*Bundle, error) {
	t.Helper()
	from := componentDir(t.(*testing.T), elf.EM_X86_64, nil)
	return Build(t.Context(), BuildOptions{From: from, Out: filepath.Join(t.TempDir(), "b"), Architecture: "amd64", Images: &o, Versions: map[string]string{
		Containerd: "v2.3.7", Runc: "v1.4.3", CNIPlugins: "v1.9.1", Kubeadm: "v1.36.3", Kubelet: "v1.36.3", Kubectl: "v1.36.3",
	}})
}
