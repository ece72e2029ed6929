package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"

	"github.com/node-upgrader/node-upgrader/image/attach"
	"github.com/node-upgrader/node-upgrader/image/oci"
	"github.com/node-upgrader/node-upgrader/image/trust"
)

func randomImage(t *testing.T) v1.Image {
	t.Helper()
	img, err := random.Image(500, 1)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// Whatever "ctr images import" would give a name has to be signed, however it is
// tagged; what is attached to a signed image need not be.
func TestVerifyImageAsksForEverySignature(t *testing.T) {
	password := func(bool) ([]byte, error) { return []byte("x"), nil }
	private, public, err := trust.NewPair(password)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := trust.ParseSigner("release.key", private, password)
	if err != nil {
		t.Fatal(err)
	}
	key := filepath.Join(t.TempDir(), "release.pub")
	if err := os.WriteFile(key, public, 0o644); err != nil {
		t.Fatal(err)
	}
	img, evil := randomImage(t), randomImage(t)
	all, err := attach.To(img, attach.Options{Repository: "example.org/u", Signer: signer})
	if err != nil {
		t.Fatal(err)
	}
	all = append(all, oci.Artifact{Tag: "v1", Name: "example.org/u:v1", Manifest: img})
	digest, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	referrer, ok := mutate.Subject(evil, v1.Descriptor{MediaType: "application/vnd.docker.distribution.manifest.v2+json", Digest: digest, Size: 1}).(v1.Image)
	if !ok {
		t.Fatal("no image")
	}
	for _, test := range []struct {
		name   string
		more   oci.Artifact
		signed bool
	}{
		{"named, and tagged as if it were attached", oci.Artifact{Tag: oci.AttachedTag(digest, "evil"), Name: "example.org/u:v2", Manifest: evil}, false},
		{"attached to nothing", oci.Artifact{Tag: "sha256-" + strings.Repeat("0", 64), Manifest: evil}, false},
		{"attached by a tag", oci.Artifact{Tag: oci.AttachedTag(digest, oci.Attestation), Manifest: evil}, true},
		{"a referrer", oci.Artifact{Manifest: referrer}, true},
		{"a referrer with a name", oci.Artifact{Name: "example.org/u:v2", Manifest: referrer}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "a.tar")
			if err := oci.WriteArchive(t.Context(), file, append(all[:len(all):len(all)], test.more), nil); err != nil {
				t.Fatal(err)
			}
			err := verifyImage(t.Context(), io.Discard, file, key)
			var bad *trust.SignatureError
			if test.signed && err != nil || !test.signed && (!errors.As(err, &bad) || !strings.Contains(err.Error(), "is not signed")) {
				t.Errorf("got %v", err)
			}
		})
	}
}
