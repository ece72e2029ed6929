package attach

import (
	"bytes"
	"encoding/base64"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/static"

	"github.com/node-upgrader/node-upgrader/image/oci"
	"github.com/node-upgrader/node-upgrader/image/trust"
)

func must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func pair(t testing.TB) (*trust.Signer, *trust.Keys) {
	t.Helper()
	password := func(bool) ([]byte, error) { return []byte("x"), nil }
	private, public, err := trust.NewPair(password)
	if err != nil {
		t.Fatal(err)
	}
	return must[*trust.Signer](t)(trust.ParseSigner("release.key", private, password)),
		must[*trust.Keys](t)(trust.ReadKeys("release.pub", bytes.NewReader(public)))
}

// index is one of two architectures.
func index(t testing.TB) v1.ImageIndex {
	t.Helper()
	var all []mutate.IndexAddendum
	for _, arch := range []string{"amd64", "arm64"} {
		img := must[v1.Image](t)(random.Image(500, 1))
		config := must[*v1.ConfigFile](t)(img.ConfigFile()).DeepCopy()
		config.OS, config.Architecture = "linux", arch
		all = append(all, mutate.IndexAddendum{Add: must[v1.Image](t)(mutate.ConfigFile(img, config))})
	}
	return mutate.AppendManifests(empty.Index, all...)
}

func layoutOf(t testing.TB, all ...oci.Artifact) *oci.Layout {
	t.Helper()
	file := filepath.Join(t.TempDir(), "a.tar")
	if err := oci.WriteArchive(t.Context(), file, all, nil); err != nil {
		t.Fatal(err)
	}
	l := must[*oci.Layout](t)(oci.Open(file))
	t.Cleanup(func() { l.Close() })
	return l
}

func digestOf(t testing.TB, m oci.Manifest) v1.Hash {
	t.Helper()
	return must[v1.Hash](t)(m.Digest())
}

func TestAttachAndVerify(t *testing.T) {
	signer, keys := pair(t)
	_, foreign := pair(t)
	m := index(t)
	o := Options{Repository: "example.org/upgrader", Signer: signer, SBOMs: map[string][]byte{"amd64": []byte("{1}"), "arm64": []byte("{2}")}}
	all := must[[]oci.Artifact](t)(To(m, o))
	if len(all) != 7 { // the index; and of each image: it, its SBOM, that one's signature
		t.Errorf("%d artifacts", len(all))
	}
	for i, again := range must[[]oci.Artifact](t)(To(m, o)) {
		if digestOf(t, again.Manifest) != digestOf(t, all[i].Manifest) || again.Tag != all[i].Tag {
			t.Errorf("%s is not the same again", again.Tag)
		}
	}
	l := layoutOf(t, append(all, oci.Artifact{Tag: "v1", Name: "example.org/upgrader:v1", Manifest: m})...)
	if err := l.Verify(); err != nil {
		t.Error(err)
	}
	images := []oci.Manifest{m}
	for i, d := range must[*v1.IndexManifest](t)(m.IndexManifest()).Manifests {
		images = append(images, must[v1.Image](t)(m.Image(d.Digest)))
		data, of, err := SBOM(l, d.Digest)
		if err != nil || string(data) != []string{"{1}", "{2}"}[i] {
			t.Fatalf("SBOM %q, %v", data, err)
		}
		images = append(images, of)
	}
	for _, img := range images {
		if by, err := Verify(l, img, keys, time.Now()); err != nil || by != signer.Fingerprint() {
			t.Errorf("by %q, %v", by, err)
		}
		var bad *trust.SignatureError
		if _, err := Verify(l, img, foreign, time.Now()); !errors.As(err, &bad) {
			t.Errorf("by a foreign key: %v", err)
		}
	}
}

func TestBadImageSignatures(t *testing.T) {
	signer, keys := pair(t)
	m, other := must[v1.Image](t)(random.Image(500, 1)), must[v1.Image](t)(random.Image(500, 1))
	tag := oci.AttachedTag(digestOf(t, m), oci.Signature)
	of := func(m oci.Manifest) oci.Artifact {
		return must[[]oci.Artifact](t)(To(m, Options{Repository: "example.org/u", Signer: signer}))[0]
	}
	sign := func(message string) string { return string(must[[]byte](t)(signer.Sign([]byte(message)))) }
	// made is a signature image of one's own.
	made := func(message, sig string) oci.Artifact {
		a := must[oci.Artifact](t)(attachment(m, oci.Signature, mutate.Addendum{
			Layer: static.NewLayer([]byte(message), signatureType), Annotations: map[string]string{signatureAnnotation: sig},
		}))
		return a
	}
	tests := []struct {
		name, want string
		attached   []oci.Artifact
	}{
		{"none", "is not signed", nil},
		{"another image's", "is of another image", []oci.Artifact{{Tag: tag, Manifest: of(other).Manifest}}},
		{"another kind of payload", "is not of an image", []oci.Artifact{made("{}", sign("{}"))}},
		{"no JSON", "is not of an image", []oci.Artifact{made("x", sign("x"))}},
		{"not signed", "is empty", []oci.Artifact{made("{}", "")}},
		{"cut", "not base64, or cut off", []oci.Artifact{made("{}", sign("{}")[:21])}},
		{"of another payload", "made with another key", []oci.Artifact{made("{}", sign("{1}"))}},
		{"huge", "larger than 64 KiB", []oci.Artifact{made(strings.Repeat(" ", maxPayload+1), base64.StdEncoding.EncodeToString([]byte("x")))}},
		{"an index", "is an index", []oci.Artifact{{Tag: tag, Manifest: index(t)}}},
		{"in no form", "no signature in cosign's form", []oci.Artifact{{Tag: tag, Manifest: other}}},
	}
	for _, test := range tests {
		l := layoutOf(t, append(test.attached, oci.Artifact{Tag: "v1", Manifest: m})...)
		var bad *trust.SignatureError
		if _, err := Verify(l, m, keys, time.Now()); !errors.As(err, &bad) || !strings.Contains(err.Error(), test.want) || bad.Hint == "" {
			t.Errorf("%s: got %v, want %q", test.name, err, test.want)
		}
	}
	// Of several one is enough, wherever it stands.
	several := must[v1.Image](t)(mutate.Append(made("{}", sign("{1}")).Manifest.(v1.Image), mutate.Addendum{ //nolint:forcetypeassert // made so
		Layer:       must[[]v1.Layer](t)(of(m).Manifest.(v1.Image).Layers())[0], //nolint:forcetypeassert // made so
		Annotations: must[*v1.Manifest](t)(of(m).Manifest.(v1.Image).Manifest()).Layers[0].Annotations,
	}))
	l := layoutOf(t, oci.Artifact{Tag: tag, Manifest: several}, oci.Artifact{Tag: "v1", Manifest: m})
	if _, err := Verify(l, m, keys, time.Now()); err != nil {
		t.Error(err)
	}
}
