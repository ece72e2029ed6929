package oci

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
)

// signedBy adds a signature of the same payload by another key.
func signedBy(t *testing.T, img v1.Image, who string) v1.Image {
	t.Helper()
	img, err := mutate.Append(img, mutate.Addendum{
		Layer:       static.NewLayer([]byte("payload"), "application/vnd.dev.cosign.simplesigning.v1+json"),
		Annotations: map[string]string{"dev.cosignproject.cosign/signature": who},
	})
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// No signature that somebody has put beside ours is lost.
func TestPushLosesNoSignature(t *testing.T) {
	img := testImage(t)
	tag := AttachedTag(digestOf(t, img), Signature)
	ours := signedBy(t, note(t, "base"), "us")
	for _, test := range []struct {
		name        string
		there, want v1.Image
		refused     bool
	}{
		{"the same", ours, ours, false},
		{"theirs beside ours", signedBy(t, ours, "them"), signedBy(t, ours, "them"), false},
		{"less than ours", note(t, "base"), ours, false},
		{"theirs alone", signedBy(t, note(t, "base"), "them"), signedBy(t, note(t, "base"), "them"), true},
	} {
		t.Run(test.name, func(t *testing.T) {
			to := serve(t)
			registries := client(t, RegistryOptions{CAFile: to.CA})
			repo := to.place(t, "upgrader").Repository
			if err := registries.Push(t.Context(), repo, Artifact{Tag: tag, Manifest: test.there}); err != nil {
				t.Fatal(err)
			}
			err := registries.Push(t.Context(), repo, Artifact{Tag: tag, Manifest: ours}, Artifact{Tag: "v1", Manifest: img})
			var e *Error
			if refused := errors.As(err, &e) && strings.Contains(err.Error(), tag) && e.Hint != ""; refused != test.refused || err != nil && !refused {
				t.Errorf("got %v", err)
			}
			if got := found(t, registries, repo, tag); got == nil || digestOf(t, got) != digestOf(t, test.want) {
				t.Errorf("the registry has another signature than it should")
			}
			if got := found(t, registries, repo, "v1"); (got == nil) != test.refused {
				t.Errorf("the image is there: %v", got != nil)
			}
		})
	}
}

func found(t *testing.T, r *Registries, repo name.Repository, tag string) Manifest {
	t.Helper()
	a, err := r.Find(t.Context(), repo, tag, "")
	if err != nil && !errors.Is(err, ErrNotFound) {
		t.Fatal(err)
	}
	return a.Manifest
}
