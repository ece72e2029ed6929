package oci

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
)

// layoutWith is a layout whose index.json somebody has changed.
func layoutWith(t *testing.T, all []Artifact, change func(list []v1.Descriptor) []v1.Descriptor) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "layout")
	if err := WriteLayout(t.Context(), dir, all, nil); err != nil {
		t.Fatal(err)
	}
	l := open(t, dir)
	l.index.Manifests = change(l.index.Manifests)
	data, err := json.Marshal(l.index)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, indexFile), data, 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// refersTo is a note that has a manifest as its subject.
func refersTo(t *testing.T, digest v1.Hash, text string) Artifact {
	t.Helper()
	img, ok := mutate.Subject(note(t, text), v1.Descriptor{MediaType: "application/vnd.oci.image.index.v1+json", Digest: digest, Size: 1}).(v1.Image)
	if !ok {
		t.Fatal("no image")
	}
	return Artifact{Manifest: img}
}

// What somebody only calls a signature is an image like any other: it would be
// imported, and no signature would be asked for.
func TestImagesAndWhatIsAttached(t *testing.T) {
	index := testImage(t)
	all := append(attachedFixture(t, index), Artifact{Tag: "v1", Name: "example.org/u:v1", Manifest: index})
	mine := digestOf(t, index)
	foreign := v1.Hash{Algorithm: "sha256", Hex: strings.Repeat("0", 64)}
	evil := note(t, "evil")
	other := note(t, "other")
	for _, test := range []struct {
		name string
		more []Artifact
		// annotations of the last one, instead of its own
		annotations map[string]string
		want        int // images
	}{
		{name: "nothing else", want: 1},
		{name: "attached to what is not there", more: []Artifact{{Tag: AttachedTag(foreign, Signature), Manifest: evil}}, want: 2},
		{name: "attached and named", more: []Artifact{{Tag: AttachedTag(mine, "evil"), Name: "example.org/u:v2", Manifest: evil}}, want: 2},
		{name: "attached, and a full name as tag", more: []Artifact{{Manifest: evil}}, annotations: map[string]string{
			annotationTag: "example.org/u:" + AttachedTag(mine, "evil"),
		}, want: 2},
		{name: "attached by a plain tag", more: []Artifact{{Manifest: evil}}, annotations: map[string]string{
			annotationTag: AttachedTag(mine, Attestation),
		}, want: 1},
		{name: "attached to each other", more: []Artifact{
			{Tag: AttachedTag(digestOf(t, other), Signature), Manifest: evil}, {Tag: AttachedTag(digestOf(t, evil), Signature), Manifest: other},
		}, want: 3},
		{name: "attached to itself", more: []Artifact{{Tag: AttachedTag(digestOf(t, evil), Signature), Manifest: evil}}, want: 2},
		{name: "refers to it", more: []Artifact{refersTo(t, mine, "x")}, want: 1},
		{name: "refers to what is not there", more: []Artifact{refersTo(t, foreign, "x")}, want: 2},
		{name: "refers to it, with a tag", more: []Artifact{refersTo(t, mine, "x")}, annotations: map[string]string{annotationTag: "v2"}, want: 2},
		{name: "refers to it, with a name", more: []Artifact{refersTo(t, mine, "x")}, annotations: map[string]string{annotationName: "example.org/u:v2"}, want: 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := layoutWith(t, append(all[:len(all):len(all)], test.more...), func(list []v1.Descriptor) []v1.Descriptor {
				if test.annotations != nil {
					list[len(list)-1].Annotations = test.annotations
				}
				return list
			})
			images, err := open(t, dir).Images()
			if err != nil || len(images) != test.want || images[0].Name != "example.org/u:v1" {
				t.Errorf("%d images, want %d: %+v, %v", len(images), test.want, images, err)
			}
		})
	}
}

// One name is one thing.
func TestSameNameTwice(t *testing.T) {
	all := signedImage(t)
	evil := Artifact{Tag: "v2", Name: "registry.example/upgrader:v2", Manifest: note(t, "evil")}
	for name, test := range map[string]struct {
		annotations map[string]string
		want        string
	}{
		"tag":         {map[string]string{annotationTag: "v1.36.3"}, "the tag v1.36.3 is given to"},
		"name":        {map[string]string{annotationTag: "v2", annotationName: all[0].Name}, "the name registry.example/upgrader:v1.36.3 is given to"},
		"name in tag": {map[string]string{annotationTag: all[0].Name}, "is given to"},
		"attached":    {map[string]string{annotationTag: all[1].Tag}, "is given to"},
	} {
		t.Run(name, func(t *testing.T) {
			refused(t, layoutWith(t, append(all, evil), func(list []v1.Descriptor) []v1.Descriptor {
				list[2].Annotations = test.annotations
				return list
			}), test.want)
		})
	}
	twice := layoutWith(t, all, func(list []v1.Descriptor) []v1.Descriptor { return append(list, list[0]) })
	if err := open(t, twice).Verify(); err != nil {
		t.Errorf("the same twice: %v", err)
	}
}

// The signature of an image that is replaced goes with it; what others need stays.
func TestReplacedImage(t *testing.T) {
	old, kept, anew := testImage(t), testImage(t), testImage(t)
	signature := func(m Manifest, text string) Artifact {
		return Artifact{Tag: AttachedTag(digestOf(t, m), Signature), Manifest: note(t, text)}
	}
	foreign := Artifact{Tag: AttachedTag(v1.Hash{Algorithm: "sha256", Hex: strings.Repeat("0", 64)}, Signature), Manifest: note(t, "foreign")}
	before := []Artifact{
		{Tag: "v1", Manifest: old},
		signature(old, "old"), refersTo(t, digestOf(t, old), "old"),
		{Tag: "v2", Manifest: kept},
		signature(kept, "kept"), foreign,
	}
	after := []Artifact{{Tag: "v1", Manifest: anew}, signature(anew, "new")}
	dir := filepath.Join(t.TempDir(), "layout")
	if err := WriteLayout(t.Context(), dir, before, nil); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{archiveOf(t, before), dir} {
		if err := Add(t.Context(), path, after...); err != nil {
			t.Fatal(err)
		}
		want := []string{"v2", before[4].Tag, foreign.Tag, "v1", after[1].Tag}
		if diff := cmp.Diff(want, tags(t, open(t, path))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", path, diff)
		}
	}
}
