package oci

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
)

func tags(t *testing.T, l *Layout) (all []string) {
	t.Helper()
	list, err := l.Artifacts()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range list {
		all = append(all, a.Tag)
	}
	return all
}

func TestWriteAndOpen(t *testing.T) {
	want := signedImage(t)
	dir := filepath.Join(t.TempDir(), "layout")
	if err := WriteLayout(context.Background(), dir, want, nil); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{archiveOf(t, want), dir} {
		l := open(t, path)
		if err := l.Verify(); err != nil {
			t.Fatal(err)
		}
		got, err := l.Artifacts()
		if err != nil || len(got) != 2 {
			t.Fatalf("%d artifacts, %v", len(got), err)
		}
		for i := range want {
			if got[i].Tag != want[i].Tag || got[i].Name != want[i].Name || digestOf(t, got[i].Manifest) != digestOf(t, want[i].Manifest) {
				t.Errorf("artifact %+v, want %+v", got[i], want[i])
			}
			if a, err := l.Find(want[i].Tag); err != nil || digestOf(t, a.Manifest) != digestOf(t, want[i].Manifest) {
				t.Errorf("find %s: %v", want[i].Tag, err)
			}
		}
		list, err := want[0].Manifest.(v1.ImageIndex).IndexManifest()
		if err != nil {
			t.Fatal(err)
		}
		if a, err := l.FindDigest(list.Manifests[1].Digest); err != nil || digestOf(t, a.Manifest) != list.Manifests[1].Digest {
			t.Errorf("find a child: %v", err)
		}
		if _, err := l.Find("other"); !errors.Is(err, ErrNotFound) {
			t.Errorf("find what is not there: %v", err)
		}
	}
	// Others read it too.
	if _, err := layout.ImageIndexFromPath(dir); err != nil {
		t.Error(err)
	}
}

// containerd 1.7 unpacks whatever has a name or a tag of its own: a signature
// must not.
func TestAttachedHasNoName(t *testing.T) {
	all := signedImage(t)
	for i, want := range []map[string]string{
		{"org.opencontainers.image.ref.name": "v1.36.3", "io.containerd.image.name": "registry.example/upgrader:v1.36.3"},
		{"node-upgrader.dev/tag": all[1].Tag},
	} {
		if diff := cmp.Diff(want, open(t, archiveOf(t, all)).index.Manifests[i].Annotations); diff != "" {
			t.Error(diff)
		}
	}
}

func TestArchiveIsReproducible(t *testing.T) {
	all := signedImage(t)
	a, err1 := os.ReadFile(archiveOf(t, all))
	b, err2 := os.ReadFile(archiveOf(t, all))
	if err := errors.Join(err1, err2); err != nil || !bytes.Equal(a, b) {
		t.Errorf("not the same bytes (%v)", err)
	}
}

func TestAdd(t *testing.T) {
	all := signedImage(t)
	dir := filepath.Join(t.TempDir(), "layout")
	if err := WriteLayout(context.Background(), dir, all, nil); err != nil {
		t.Fatal(err)
	}
	again := Artifact{Tag: all[1].Tag, Manifest: note(t, "signed anew")}
	sbom := Artifact{Tag: AttachedTag(digestOf(t, all[0].Manifest), SBOM), Manifest: note(t, "{}")}
	for _, path := range []string{archiveOf(t, all), dir} {
		for range 2 { // the second time changes nothing
			if err := Add(context.Background(), path, again, sbom); err != nil {
				t.Fatal(err)
			}
			l := open(t, path)
			if err := l.Verify(); err != nil {
				t.Error(err)
			}
			if diff := cmp.Diff([]string{"v1.36.3", again.Tag, sbom.Tag}, tags(t, l)); diff != "" {
				t.Error(diff)
			}
			if a, err := l.Find(again.Tag); err != nil || digestOf(t, a.Manifest) != digestOf(t, again.Manifest) {
				t.Errorf("the old signature is still there, %v", err)
			}
		}
	}
	if err := Add(context.Background(), filepath.Join(t.TempDir(), "none"), sbom); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("added to nothing: %v", err)
	}
}

// What an interruption left is used, what a crash of the machine spoiled is not.
func TestWriteLayoutAgain(t *testing.T) {
	all := signedImage(t)
	dir := filepath.Join(t.TempDir(), "layout")
	if err := WriteLayout(context.Background(), dir, all, nil); err != nil {
		t.Fatal(err)
	}
	index := filepath.Join(dir, indexFile)
	if err := os.Remove(index); err != nil { // it comes last
		t.Fatal(err)
	}
	list, _, err := collect(all)
	if err != nil {
		t.Fatal(err)
	}
	kept, spoiled := filepath.Join(dir, blobName(list[0].digest)), filepath.Join(dir, blobName(list[1].digest))
	before, err := os.Stat(kept)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(spoiled, make([]byte, list[1].size), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := WriteLayout(context.Background(), dir, all, nil); err != nil {
		t.Fatal(err)
	}
	if after, err := os.Stat(kept); err != nil || !os.SameFile(before, after) {
		t.Errorf("a sound blob was written again (%v)", err)
	}
	if err := open(t, dir).Verify(); err != nil {
		t.Error(err)
	}
}

func TestWriteLeavesNothing(t *testing.T) {
	all := signedImage(t)
	for name, write := range map[string]func(context.Context, string, []Artifact, Progress) error{"archive": WriteArchive, "layout": WriteLayout} {
		dir := t.TempDir()
		ctx, cancel := context.WithCancel(context.Background())
		err := write(ctx, filepath.Join(dir, "out"), all, func(int64, int64) { cancel() })
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
		err = filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if base := filepath.Base(path); strings.HasPrefix(base, ".") || base == indexFile || base == "out" && name == "archive" {
				t.Errorf("%s: left %s", name, path)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
}

func TestWriteLayoutIntoOther(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "letters"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := WriteLayout(context.Background(), dir, signedImage(t), nil); err == nil || !strings.Contains(err.Error(), "letters") {
		t.Errorf("got %v", err)
	}
}
