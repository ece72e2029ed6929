package cri

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	ctrd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/metadata"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/plugins/content/local"
	"github.com/containerd/containerd/v2/plugins/snapshots/native"
	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"go.etcd.io/bbolt"

	"github.com/node-upgrader/node-upgrader/image"
)

const imageName = "registry.k8s.io/pause:3.10.2"

// store is containerd's own store of images, content and snapshots, in this
// process, and the client that works with it.
type store struct {
	t      *testing.T
	ctx    context.Context
	db     *metadata.DB
	client *client
	cri    *containerd
	diffs  *diffs
}

// diffs unpacks layers that are not compressed: their digest is all that counts.
type diffs struct{ applied int }

func (d *diffs) Apply(_ context.Context, desc ocispec.Descriptor, _ []mount.Mount, _ ...diff.ApplyOpt) (ocispec.Descriptor, error) {
	d.applied++
	return desc, nil
}

func (d *diffs) Compare(context.Context, []mount.Mount, []mount.Mount, ...diff.Opt) (ocispec.Descriptor, error) {
	return ocispec.Descriptor{}, errors.New("unexpected comparison")
}

func newStore(t *testing.T) *store {
	t.Helper()
	s := &store{t: t, ctx: namespaces.WithNamespace(t.Context(), namespace), cri: &containerd{images: map[string]string{}}, diffs: &diffs{}}
	_, c := serve(t, s.cri)
	s.client = c.(*client)
	dir := t.TempDir()
	blobs, err := local.NewStore(filepath.Join(dir, "content"))
	s.must(err)
	snaps, err := native.NewSnapshotter(filepath.Join(dir, "snapshots"))
	s.must(err)
	t.Cleanup(func() { snaps.Close() })
	bolt, err := bbolt.Open(filepath.Join(dir, "meta.db"), 0o600, nil)
	s.must(err)
	t.Cleanup(func() { bolt.Close() })
	s.db = metadata.NewDB(bolt, blobs, map[string]snapshots.Snapshotter{"native": snaps})
	s.must(s.db.Init(t.Context()))
	s.client.containerd, err = ctrd.New("", ctrd.WithServices(
		ctrd.WithContentStore(s.db.ContentStore()), ctrd.WithImageStore(metadata.NewImageStore(s.db)), ctrd.WithDiffService(s.diffs),
		ctrd.WithSnapshotters(map[string]snapshots.Snapshotter{"native": s.db.Snapshotter("native")}), ctrd.WithLeasesService(metadata.NewLeaseManager(s.db))))
	s.must(err)
	return s
}

func (s *store) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// collect is containerd's garbage collection; it returns the blobs that are left.
func (s *store) collect() []string {
	s.t.Helper()
	_, err := s.db.GarbageCollect(s.ctx)
	s.must(err)
	var left []string
	s.must(s.db.ContentStore().Walk(s.ctx, func(i content.Info) error {
		left = append(left, i.Digest.String())
		return nil
	}))
	slices.Sort(left)
	return left
}

// bundle has one image of two layers, in an index.
func (s *store) bundle() (Import, string) {
	s.t.Helper()
	dir := s.t.TempDir()
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	img, err := mutate.ConfigFile(img, &v1.ConfigFile{OS: "linux", Architecture: runtime.GOARCH, RootFS: v1.RootFS{Type: "layers"}})
	s.must(err)
	for _, text := range []string{"first", "second"} {
		img, err = mutate.AppendLayers(img, static.NewLayer([]byte(text), types.OCIUncompressedLayer))
		s.must(err)
	}
	index := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: runtime.GOARCH}}})
	path, err := layout.Write(filepath.Join(dir, "images"), empty.Index)
	s.must(err)
	s.must(path.AppendIndex(index, layout.WithAnnotations(map[string]string{"io.containerd.image.name": imageName})))
	m := image.Manifest{
		SchemaVersion: image.SchemaVersionImages, Architecture: runtime.GOARCH, KubernetesVersion: "v1.36.3",
		Components: []image.Component{{Name: image.Images, Version: "v1.36.3"}},
	}
	s.must(filepath.WalkDir(dir, func(file string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(file)
		rel, _ := filepath.Rel(dir, file)
		m.Files = append(m.Files, image.File{
			Path: rel, Component: image.Images, SHA256: digest.FromBytes(data).Encoded(), Size: int64(len(data)), Mode: 0o644,
		})
		return err
	}))
	slices.SortFunc(m.Files, func(a, b image.File) int { return strings.Compare(a.Path, b.Path) })
	data, err := json.Marshal(m)
	s.must(err)
	s.must(os.WriteFile(filepath.Join(dir, image.ManifestName), data, 0o600))
	b, err := image.Open(dir)
	s.must(err)
	all, err := b.Images(s.ctx)
	s.must(err)
	return Import{Name: imageName, Snapshotter: "native", Image: all[0], Bundle: b}, filepath.Join(dir, "images/blobs/sha256", digest.FromString("second").Encoded())
}

// What was imported outlives containerd's garbage collection as a whole, pinned;
// a second time nothing is unpacked again.
func TestImport(t *testing.T) {
	s := newStore(t)
	i, _ := s.bundle()
	if have, err := s.client.Image(t.Context(), imageName, "native"); have != nil || err != nil {
		t.Fatal(have, err)
	}
	for range 2 {
		s.must(s.client.Import(t.Context(), i))
		var want []string
		for _, b := range i.Image.Blobs {
			want = append(want, b.Digest())
		}
		slices.Sort(want)
		if diff := cmp.Diff(want, s.collect()); diff != "" || s.diffs.applied != 2 {
			t.Errorf("%d layers were unpacked\n%s", s.diffs.applied, diff)
		}
	}
	want := &Image{ID: i.Image.ID, Pinned: true, PinnedBy: i.Bundle.Digest}
	have, err := s.client.Image(t.Context(), imageName, "native")
	if diff := cmp.Diff(want, have); diff != "" || err != nil {
		t.Errorf("before CRI knows: %v\n%s", err, diff)
	}
	s.cri.images[imageName], want.Ready = i.Image.ID, true
	have, err = s.client.Image(t.Context(), imageName, "native")
	if diff := cmp.Diff(want, have); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
	record, err := s.client.containerd.ImageService().Get(s.ctx, imageName)
	if err != nil || record.Target.Digest.String() != i.Image.Target.Digest.String() || !images.IsIndexType(record.Target.MediaType) {
		t.Errorf("%+v %v", record.Target, err)
	}
}

// An import that is cut short gives no name; what it has left does no harm, and
// the next one completes it.
func TestImportCutShort(t *testing.T) {
	s := newStore(t)
	i, second := s.bundle()
	s.must(os.WriteFile(second, []byte("SECOND"), 0o600))
	var bad *image.BadBundleError
	if err := s.client.Import(t.Context(), i); !errors.As(err, &bad) || !strings.Contains(err.Error(), imageName) {
		t.Fatalf("a layer that was altered: %v", err)
	}
	if have, err := s.client.Image(t.Context(), imageName, "native"); have != nil || err != nil {
		t.Fatal(have, err)
	}
	if left := s.collect(); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	s.must(os.WriteFile(second, []byte("second"), 0o600))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.client.Import(ended, i); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	// A name without anything behind it, as after an import by somebody else.
	_, err := s.client.containerd.ImageService().Create(s.ctx, images.Image{
		Name: imageName, Target: ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromString("gone"), Size: 4},
		Labels: map[string]string{"io.cri-containerd.image": "managed"},
	})
	s.must(err)
	if have, err := s.client.Image(t.Context(), imageName, "native"); err != nil || have == nil || have.Ready || have.ID != "" {
		t.Errorf("%+v %v", have, err)
	}
	s.must(s.client.Import(t.Context(), i))
	if len(s.collect()) != len(i.Image.Blobs) {
		t.Error("something was collected")
	}
	record, err := s.client.containerd.ImageService().Get(s.ctx, imageName)
	if err != nil || record.Labels["io.cri-containerd.image"] != "managed" || record.Labels[pinnedLabel] != pinnedValue {
		t.Errorf("%v %v", record.Labels, err)
	}
}

// The upgrader's pin moves from bundle to bundle and ends; another's is nobody's
// business.
func TestPins(t *testing.T) {
	s := newStore(t)
	for name, labels := range map[string]map[string]string{
		"free:1": {"x": "y"}, "ours:1": {pinnedLabel: pinnedValue, PinnedByLabel: "sha256:old"}, "his:1": {pinnedLabel: pinnedValue},
	} {
		_, err := s.client.containerd.ImageService().Create(s.ctx, images.Image{
			Name: name, Labels: labels, Target: ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromString(name), Size: 4},
		})
		s.must(err)
		s.must(s.client.Pin(t.Context(), name, "sha256:new"))
	}
	pinned, err := s.client.PinnedImages(t.Context())
	if diff := cmp.Diff(map[string]string{"free:1": "sha256:new", "ours:1": "sha256:new"}, pinned); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
	for _, name := range []string{"free:1", "ours:1", "his:1", "gone:1"} {
		s.must(s.client.Unpin(t.Context(), name))
	}
	for name, want := range map[string]map[string]string{"free:1": {"x": "y"}, "ours:1": {}, "his:1": {pinnedLabel: pinnedValue}} {
		record, err := s.client.containerd.ImageService().Get(s.ctx, name)
		if diff := cmp.Diff(want, record.Labels); diff != "" && len(want)+len(record.Labels) > 0 || err != nil {
			t.Errorf("%s: %v\n%s", name, err, diff)
		}
	}
	if err := s.client.Pin(t.Context(), "gone:1", "sha256:new"); err == nil {
		t.Error("an image that is not there was pinned")
	}
}

// A pull is CRI's, whose registry does not answer here.
func TestPull(t *testing.T) {
	s := newStore(t)
	if err := s.client.Pull(t.Context(), imageName); err == nil || !strings.Contains(err.Error(), "pull image "+imageName) {
		t.Errorf("%v", err)
	}
}
