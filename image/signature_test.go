package image

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"github.com/node-upgrader/node-upgrader/image/trust"
)

// pair makes a key and the file that is required of a signature.
func pair(t testing.TB) (*trust.Signer, *trust.Keys) {
	t.Helper()
	password := func(bool) ([]byte, error) { return []byte("x"), nil }
	private, public, err := trust.NewPair(password)
	if err != nil {
		t.Fatal(err)
	}
	s, err1 := trust.ParseSigner("release.key", private, password)
	k, err2 := trust.ReadKeys("release.pub", bytes.NewReader(public))
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	return s, k
}

func mustSign(t testing.TB, dir string, s *trust.Signer) *Bundle {
	t.Helper()
	b := mustOpen(t, dir)
	if err := Sign(context.Background(), b, s); err != nil {
		t.Fatal(err)
	}
	return b
}

func TestSign(t *testing.T) {
	signer, keys := pair(t)
	b := openFixture(t)
	var missing *BadBundleError
	if _, err := b.VerifySignature(keys, time.Now()); !errors.As(err, &missing) || missing.File != SignatureName || missing.Hint == "" {
		t.Errorf("not signed: %v", err)
	}
	for range 2 { // signed again it is the same
		if err := Sign(t.Context(), b, signer); err != nil {
			t.Fatal(err)
		}
		for _, b := range []*Bundle{b, mustOpen(t, b.Dir)} {
			if by, err := b.VerifySignature(keys, time.Now()); err != nil || by != signer.Fingerprint() || !b.Signed() {
				t.Errorf("by %q, %v", by, err)
			}
		}
	}
	if got := names(t, filepath.Dir(b.Dir)); len(got) != 1 {
		t.Errorf("left beside the bundle: %v", got)
	}
	if other := mustOpen(t, fixture(t, t.TempDir(), small)); other.Digest != b.Digest || other.SameSignature(b) {
		t.Error("a signature changes the digest, or is not seen")
	}
	// What is not sound is not signed.
	file("kubelet/kubelet", func(p string) error { return os.WriteFile(p, make([]byte, 300_000), 0o755) })(t, b.Dir)
	var bad *BadBundleError
	if err := Sign(t.Context(), b, signer); !errors.As(err, &bad) || bad.File != "kubelet/kubelet" {
		t.Errorf("signed: %v", err)
	}
}

// What may lie in the place of a signature, each refused by name.
func TestBadSignatures(t *testing.T) {
	signer, keys := pair(t)
	foreign, _ := pair(t)
	tests := []struct {
		name, reason string
		open         bool // refused whether a signature is required or not
		spoil        func(t *testing.T, sig string)
	}{
		{"missing", "is missing", false, func(t *testing.T, sig string) { os.Remove(sig) }},
		{"empty", "is empty", false, func(t *testing.T, sig string) { write(t, sig, nil) }},
		{"cut", "not base64, or cut off", false, func(t *testing.T, sig string) { write(t, sig, read(t, filepath.Dir(sig), SignatureName)[:33]) }},
		{"half", "made with another key, or of something else", false, func(t *testing.T, sig string) { write(t, sig, read(t, filepath.Dir(sig), SignatureName)[:32]) }},
		{"by another key", "is not by release.pub (sha256:", false, func(t *testing.T, sig string) { mustSign(t, filepath.Dir(sig), foreign) }},
		{"of another bundle", "made with another key, or of something else", false, func(t *testing.T, sig string) {
			other := fixture(t, t.TempDir(), func(string) int64 { return 200 })
			write(t, sig, mustSign(t, other, signer).signature)
		}},
		{"of a manifest that was changed", "made with another key, or of something else", false, func(t *testing.T, sig string) {
			rewrite("v1.3.4", "v1.3.5")(t, filepath.Dir(sig))
		}},
		{"huge", "larger than 4 KiB", true, func(t *testing.T, sig string) {
			if err := os.Truncate(sig, 1<<30); err != nil {
				t.Fatal(err)
			}
		}},
		{"a link", "symbolic link", true, func(t *testing.T, sig string) {
			if err := errors.Join(os.Rename(sig, sig+".x"), os.Symlink(sig+".x", sig)); err != nil {
				t.Fatal(err)
			}
		}},
		{"hard-linked", "hard-linked", true, func(t *testing.T, sig string) {
			if err := os.Link(sig, filepath.Join(t.TempDir(), "x")); err != nil {
				t.Fatal(err)
			}
		}},
		{"a directory", "not a regular file", true, func(t *testing.T, sig string) { file("", replaced(directory))(t, sig) }},
		{"a fifo", "not a regular file", true, func(t *testing.T, sig string) { file("", replaced(fifo))(t, sig) }},
		{"in the manifest", "names the manifest's signature", true, func(t *testing.T, sig string) {
			rewrite(`"kubelet/kubelet"`, `"bundle.json.sig"`)(t, filepath.Dir(sig))
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := fixture(t, t.TempDir(), small)
			mustSign(t, dir, signer)
			test.spoil(t, filepath.Join(dir, SignatureName))
			b, err := Open(dir)
			if !test.open && err == nil {
				_, err = b.VerifySignature(keys, time.Now())
			}
			var bad *BadBundleError
			if !errors.As(err, &bad) || !strings.HasPrefix(bad.File, SignatureName) || !strings.Contains(bad.Reason, test.reason) || bad.Hint == "" {
				t.Errorf("got %v, want %s: …%s…", err, SignatureName, test.reason)
			}
		})
	}
}

// A signature travels with the bundle: into the stage, also into one that was
// there before it was signed, and into the image.
func TestSignatureTravels(t *testing.T) {
	signer, keys := pair(t)
	another, anotherKeys := pair(t)
	b, o := openFixture(t), options(t)
	mustStage(t, b, o) // not signed yet
	steps := []struct {
		name   string
		change func()
		want   *trust.Keys
	}{
		{"signed", func() { b = mustSign(t, b.Dir, signer) }, keys},
		{"signed anew", func() { b = mustSign(t, b.Dir, another) }, anotherKeys},
		{"without one", func() { b = openFixture(t) }, anotherKeys},
	}
	for _, step := range steps {
		step.change()
		s := mustStage(t, b, o)
		if s.Copied {
			t.Errorf("%s: staged anew", step.name)
		}
		found, err := FindStaged(t.Context(), o.Store, b.Digest, o.BootID)
		if err != nil || !found.Trusted {
			t.Fatalf("%s: %+v, %v", step.name, found, err)
		}
		for _, staged := range []*Bundle{s.Bundle, found.Bundle} {
			if _, err := staged.VerifySignature(step.want, time.Now()); err != nil {
				t.Errorf("%s: %v", step.name, err)
			}
		}
	}
	b = mustSign(t, b.Dir, signer)
	o.Store = t.TempDir()
	if _, err := mustStage(t, b, o).Bundle.VerifySignature(keys, time.Now()); err != nil {
		t.Error(err)
	}
	if got := mode(t, filepath.Join(b.Dir, SignatureName)); got != 0o644 {
		t.Errorf("mode %v", got)
	}
	archive := filepath.Join(t.TempDir(), "a.tar")
	packTo(t, archive, PackOptions{Parts: []Part{{b, elfUpgrader(t)}}, Compression: Gzip})
	img, ok := find(t, archive).Manifest.(v1.Image)
	if !ok {
		t.Fatal("no image")
	}
	flat := mutate.Extract(img)
	defer flat.Close()
	for r := tar.NewReader(flat); ; {
		h, err := r.Next()
		if err != nil {
			t.Fatalf("no signature in the image: %v", err)
		}
		if h.Name == "bundle/"+SignatureName {
			if data, err := io.ReadAll(r); err != nil || !bytes.Equal(data, b.signature) {
				t.Errorf("in the image: %q, %v", data, err)
			}
			return
		}
	}
}

// The signature is changed between the look and the copy.
func TestStageSignatureChanged(t *testing.T) {
	signer, _ := pair(t)
	foreign, _ := pair(t)
	b := mustSign(t, fixture(t, t.TempDir(), small), signer)
	mustSign(t, b.Dir, foreign)
	o := options(t)
	var bad *BadBundleError
	if _, err := Stage(t.Context(), b, o); !errors.As(err, &bad) || bad.File != SignatureName {
		t.Errorf("got %v", err)
	}
	if diff := cmp.Diff([]string(nil), names(t, o.Store)); diff != "" {
		t.Errorf("left in the store:\n%s", diff)
	}
}
