package trust

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func password(pw string) Password { return func(bool) ([]byte, error) { return []byte(pw), nil } }

func TestNewPair(t *testing.T) {
	for _, pw := range []string{"secret", ""} {
		private, public, err := NewPair(password(pw))
		if err != nil || !bytes.HasPrefix(private, []byte("-----BEGIN ENCRYPTED SIGSTORE PRIVATE KEY-----")) {
			t.Fatalf("%v\n%s", err, private)
		}
		s := must[*Signer](t)(ParseSigner("k", private, password(pw)))
		sig := must[[]byte](t)(s.Sign([]byte("message")))
		if _, err := keysOf(t, public).Verify([]byte("message"), sig, today()); err != nil {
			t.Error(err)
		}
		var bad *KeyError
		if _, err := ParseSigner("k", private, password("another")); !errors.As(err, &bad) || !strings.Contains(bad.Hint, "COSIGN_PASSWORD") {
			t.Errorf("another password: %v", err)
		}
	}
}

// What cosign made is in testdata; its key's password is "proving".
func TestCosignsOwn(t *testing.T) {
	file := func(name string) []byte { return must[[]byte](t)(os.ReadFile(filepath.Join("testdata", name))) }
	keys := keysOf(t, file("cosign.pub"))
	message := file("message")
	if _, err := keys.Verify(message, file("message.sig"), today()); err != nil {
		t.Error(err)
	}
	s := must[*Signer](t)(ParseSigner("cosign.key", file("cosign.key"), password("proving")))
	if _, err := keys.Verify(message, must[[]byte](t)(s.Sign(message)), today()); err != nil {
		t.Error(err)
	}
}

func TestPrivateKeysThatAreRefused(t *testing.T) {
	p256 := makers()["ecdsa"](t)
	p384 := must[*ecdsa.PrivateKey](t)(ecdsa.GenerateKey(elliptic.P384(), rand.Reader))
	private := privatePEM(t, p256)
	encrypted, _, err := NewPair(password("x"))
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		data []byte
		want string
	}{
		{"empty", nil, "not one private key"},
		{"a public key", publicPEM(t, p256), "cannot be read as a private key"},
		{"two", append(bytes.Clone(private), private...), "not one private key"},
		{"another curve", privatePEM(t, p384), "only P-256"},
		{"no password", encrypted, "cannot be read as a private key"},
	}
	for _, test := range tests {
		var bad *KeyError
		if _, err := ParseSigner("k", test.data, nil); !errors.As(err, &bad) || !strings.Contains(bad.Reason, test.want) {
			t.Errorf("%s: got %v, want %q", test.name, err, test.want)
		}
	}
}
