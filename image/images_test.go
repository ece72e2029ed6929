package image

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

func TestImagesFromArchives(t *testing.T) {
	dir := archiveDir(t)
	b, err := buildWithImages(t, ContainerImageOptions{List: imageNames(), From: []string{dir}})
	if err != nil {
		t.Fatal(err)
	}
	again, err := buildWithImages(t, ContainerImageOptions{List: imageNames(), From: []string{dir}})
	if err != nil || again.Digest != b.Digest {
		t.Errorf("the same again is %s, not %s: %v", again.Digest, b.Digest, err)
	}
	if b.Manifest.SchemaVersion != SchemaVersionImages || b.Version(Images) != "v1.36.3" {
		t.Errorf("schema %d, images %q", b.Manifest.SchemaVersion, b.Version(Images))
	}
	if err := b.Verify(t.Context(), nil); err != nil {
		t.Error(err)
	}
	images, err := b.Images(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, i := range images {
		got = append(got, i.Name)
		if last := i.Blobs[len(i.Blobs)-1]; last.Digest() != i.Target.Digest.String() {
			t.Errorf("%s: the last blob is %s, not %s", i.Name, last.Digest(), i.Target.Digest)
		}
		seen := map[string]bool{}
		for _, blob := range i.Blobs {
			for _, child := range blob.Children {
				if !seen[child] {
					t.Errorf("%s: %s comes after %s, which refers to it", i.Name, child, blob.Digest())
				}
			}
			seen[blob.Digest()] = true
			if text := readBlob(t, b, blob); digestOf(text) != blob.Digest() {
				t.Errorf("%s: other bytes", blob.Path)
			}
		}
	}
	if diff := cmp.Diff([]string{imageNames()[2], imageNames()[0], imageNames()[1]}, got); diff != "" {
		t.Error(diff)
	}
	apiserver := images[1]
	index := multi(t, "apiserver")
	if want, _ := index.Digest(); apiserver.Target.Digest != want || !apiserver.Target.MediaType.IsIndex() || len(apiserver.Blobs) != 5 {
		t.Errorf("kube-apiserver is %v with %d blobs, want the index %s and one platform's", apiserver.Target, len(apiserver.Blobs), want)
	}
	if want, _ := containerImage(t, "apiserver", "amd64").ConfigName(); apiserver.ID != want.String() {
		t.Errorf("its id is %s, want %s", apiserver.ID, want)
	}
}

func readBlob(t testing.TB, b *Bundle, blob Blob) []byte {
	t.Helper()
	r, err := b.ReadBlob(t.Context(), blob)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	data, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// Archives keep the names of the public registry; the bundle has the private one's.
func TestImagesOfAnotherRepository(t *testing.T) {
	list := []string{"r.example/k8s/coredns:v1.14.2"}
	b, err := buildWithImages(t, ContainerImageOptions{List: list, From: []string{archiveDir(t)}})
	if err != nil {
		t.Fatal(err)
	}
	if images, err := b.Images(t.Context()); err != nil || len(images) != 1 || images[0].Name != list[0] {
		t.Errorf("%v %v", images, err)
	}
}

func TestImagesFromARegistry(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "http://")
	index := multi(t, "apiserver")
	push, err := name.NewTag(host + "/mirror/kube-apiserver:v1.36.3")
	if err != nil {
		t.Fatal(err)
	}
	single, err := name.NewTag(host + "/pause:3.10.2")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(remote.WriteIndex(push, index), remote.Write(single, containerImage(t, "pause", "amd64"))); err != nil {
		t.Fatal(err)
	}
	list := []string{"registry.k8s.io/kube-apiserver:v1.36.3", host + "/pause:3.10.2"}
	b, err := buildWithImages(t, ContainerImageOptions{List: list, Mirrors: map[string]string{"registry.k8s.io": host + "/mirror"}})
	if err != nil {
		t.Fatal(err)
	}
	images, err := b.Images(t.Context())
	if err != nil || len(images) != 2 {
		t.Fatal(images, err)
	}
	for _, i := range images {
		if want, _ := index.Digest(); strings.Contains(i.Name, "apiserver") && (i.Target.Digest != want || len(i.Blobs) != 5) {
			t.Errorf("%s is %v with %d blobs", i.Name, i.Target, len(i.Blobs))
		}
	}
	_, err = buildWithImages(t, ContainerImageOptions{List: []string{host + "/none:v1"}})
	if err == nil || !strings.Contains(err.Error(), host+"/none:v1") {
		t.Errorf("an image that is not there: %v", err)
	}
}

// Many an index says linux/arm64/v8.
func TestImageOfAVariant(t *testing.T) {
	index := v1.ImageIndex(empty.Index)
	for _, p := range []v1.Platform{{OS: "windows", Architecture: "arm64"}, {OS: "linux", Architecture: "amd64"}, {OS: "linux", Architecture: "arm64", Variant: "v8"}} {
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add: containerImage(t, p.OS, p.Architecture), Descriptor: v1.Descriptor{Platform: &p},
		})
	}
	found, err := imageIn(index, "arm64")
	if err != nil {
		t.Fatal(err)
	}
	want, err := containerImage(t, "linux", "arm64").Digest()
	if _, ok := found.content[want.String()]; !ok || err != nil {
		t.Errorf("it is not %s, %v", want, err)
	}
	if _, err := imageIn(index, "riscv64"); err == nil || !strings.Contains(err.Error(), "no image for linux/riscv64") {
		t.Errorf("got %v", err)
	}
}

func TestImagesRefusedAtBuild(t *testing.T) {
	dir, twice, bad := archiveDir(t), t.TempDir(), t.TempDir()
	path, err := layout.Write(filepath.Join(twice, "other"), empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	if err := path.AppendImage(containerImage(t, "another pause", "amd64"), layout.WithAnnotations(map[string]string{nameAnnotation: "registry.k8s.io/pause:3.10.2"})); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(bad, "x.tar"), []byte("not a tar"))
	for what, c := range map[string]struct {
		o    ContainerImageOptions
		want string
	}{
		"no such image":       {ContainerImageOptions{List: []string{"registry.k8s.io/etcd:3.6.8-0"}, From: []string{dir}}, "registry.k8s.io/etcd:3.6.8-0: in none of the archives in " + dir},
		"no name":             {ContainerImageOptions{List: []string{"etcd"}, From: []string{dir}}, `"etcd" is not the name of an image`},
		"two that differ":     {ContainerImageOptions{List: imageNames(), From: []string{dir, twice}}, "several of that name that differ"},
		"no archive":          {ContainerImageOptions{List: imageNames(), From: []string{bad}}, "x.tar: not a tar of an image"},
		"list and repository": {ContainerImageOptions{List: imageNames(), From: []string{dir}, Repository: "r.example"}, "whole names"},
	} {
		if _, err := buildWithImages(t, c.o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", what, err, c.want)
		}
	}
	// One that has it for another architecture only.
	if _, err := (archives{images: []archived{{"f", "r.example/a:1", func(string) (foundImage, error) { return foundImage{}, fs.ErrNotExist }}}}).find(t.Context(), "r.example/a:1", "s390x"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

// kubeadm and containerd of the bundle are asked; with another repository
// containerd's default is brought from there, under its own name.
func TestAskImages(t *testing.T) {
	dir := t.TempDir()
	script := func(component, text string) {
		name := filepath.Join(dir, component, component)
		write(t, name, []byte("#!/bin/sh\n"+text))
		if err := os.Chmod(name, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	script(Kubeadm, `case "$*" in
"config images list --kubernetes-version v1.36.3") echo registry.k8s.io/pause:3.10.2; echo registry.k8s.io/coredns/coredns:v1.14.2 ;;
"config images list --kubernetes-version v1.36.3 --image-repository r.example/k8s") echo r.example/k8s/pause:3.10.2 ;;
*) echo "no such question: $*" >&2; exit 1 ;;
esac`)
	script(Containerd, `echo 'version = 4
[plugins]
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "registry.k8s.io/pause:3.10.1"'`)
	for repository, want := range map[string][]wanted{
		"":              {{"registry.k8s.io/coredns/coredns:v1.14.2", "registry.k8s.io/coredns/coredns:v1.14.2"}, {"registry.k8s.io/pause:3.10.1", "registry.k8s.io/pause:3.10.1"}, {"registry.k8s.io/pause:3.10.2", "registry.k8s.io/pause:3.10.2"}},
		"r.example/k8s": {{"r.example/k8s/pause:3.10.2", "r.example/k8s/pause:3.10.2"}, {"registry.k8s.io/pause:3.10.1", "r.example/k8s/pause:3.10.1"}},
	} {
		got, err := wantedImages(t.Context(), ContainerImageOptions{Repository: repository}, dir, runtime.GOARCH, "v1.36.3")
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(wanted{})); err != nil || diff != "" {
			t.Errorf("%q: %v\n%s", repository, err, diff)
		}
	}
	if _, err := wantedImages(t.Context(), ContainerImageOptions{}, dir, runtime.GOARCH, "v1.37.0"); err == nil || !strings.Contains(err.Error(), "no such question") {
		t.Errorf("%v", err)
	}
	if _, err := wantedImages(t.Context(), ContainerImageOptions{}, dir, "s390x", "v1.36.3"); err == nil || !strings.Contains(err.Error(), "give the list") {
		t.Errorf("a foreign architecture: %v", err)
	}
	// In a set, what this machine's programs have said is for the others too.
	together := ContainerImageOptions{Repository: "r.example/k8s", asked: &[]wanted{}}
	own, err1 := wantedImages(t.Context(), together, dir, runtime.GOARCH, "v1.36.3")
	other, err2 := wantedImages(t.Context(), together, dir, "s390x", "v1.36.3")
	if diff := cmp.Diff(own, other, cmp.AllowUnexported(wanted{})); err1 != nil || err2 != nil || diff != "" || len(own) != 2 {
		t.Errorf("%v, %v\n%s", err1, err2, diff)
	}
}

func TestSandboxImage(t *testing.T) {
	for text, want := range map[string]string{
		"": "",
		"[plugins.'io.containerd.cri.v1.images'.pinned_images]\nsandbox = 'a'": "a",
		"[plugins.\"io.containerd.grpc.v1.cri\"]\nsandbox_image = 'b'":         "b",
		"[plugins.'x']\nsandbox_image = 'c'":                                   "",
	} {
		if got, err := SandboxImage([]byte(text)); got != want || err != nil {
			t.Errorf("%q: %q %v", text, got, err)
		}
	}
	if _, err := SandboxImage([]byte("[")); err == nil {
		t.Error("no error")
	}
}

func FuzzImagesIndex(f *testing.F) {
	f.Add([]byte(`{"schemaVersion":2,"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","size":3,"digest":"sha256:` + strings.Repeat("a", 64) + `","annotations":{"io.containerd.image.name":"r.example/a:1"}}]}`))
	f.Fuzz(func(t *testing.T, index []byte) {
		if len(index) == 0 {
			return
		}
		dir := t.TempDir()
		m := Manifest{SchemaVersion: SchemaVersionImages, Architecture: runtime.GOARCH, KubernetesVersion: "v1.36.3", Components: []Component{{Images, "v1.36.3"}}}
		for name, data := range map[string][]byte{"oci-layout": []byte(`{"imageLayoutVersion":"1.0.0"}`), "index.json": index} {
			f := imageFile(name)
			f.Size, f.SHA256 = int64(len(data)), strings.TrimPrefix(digestOf(data), "sha256:")
			write(t, filepath.Join(dir, f.Path), data)
			m.Files = append(m.Files, f)
		}
		writeManifest(t, dir, m)
		b := mustOpen(t, dir)
		images, err := b.Images(t.Context())
		var bad *BadBundleError
		if err == nil || !errors.As(err, &bad) {
			t.Errorf("%d images %v of an index without blobs", len(images), fmt.Sprint(err))
		}
	})
}
