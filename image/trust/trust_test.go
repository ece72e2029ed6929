package trust

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha512"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestSignAndVerify(t *testing.T) {
	message := []byte(`{"schemaVersion":1}`)
	for kind, make := range makers() {
		t.Run(kind, func(t *testing.T) {
			private := make(t)
			s := signerOf(t, private)
			sig := must[[]byte](t)(s.Sign(message))
			if again := must[[]byte](t)(s.Sign(message)); !bytes.Equal(sig, again) {
				t.Errorf("signed twice: %s, %s", sig, again)
			}
			if len(sig) > MaxSignature {
				t.Errorf("%d bytes", len(sig))
			}
			good := map[string]*Keys{
				"key":         keysOf(t, publicPEM(t, private)),
				"certificate": keysOf(t, certificatePEM(t, private, today().AddDate(0, -1, 0), x509.KeyUsageDigitalSignature)),
				"the second":  keysOf(t, publicPEM(t, make(t)), []byte("\n"), publicPEM(t, private)),
				"not expired": keysOf(t, certificatePEM(t, private, today().AddDate(-2, 0, 0), 0), publicPEM(t, private)),
			}
			for name, keys := range good {
				by, err := keys.Verify(message, append(sig, '\n'), today())
				if err != nil || by != s.Fingerprint() {
					t.Errorf("%s: by %q, want %q; %v", name, by, s.Fingerprint(), err)
				}
			}
			keys := good["key"]
			for name, sig := range map[string][]byte{
				"empty": nil, "one letter less": sig[:len(sig)-1], "four less": sig[:len(sig)-4], "half": sig[:len(sig)/2],
				"of another message": must[[]byte](t)(s.Sign([]byte("{}"))), "by another key": must[[]byte](t)(signerOf(t, make(t)).Sign(message)),
				"raw": must[[]byte](t)(base64.StdEncoding.DecodeString(string(sig))), "two lines": append(append([]byte{}, sig...), "\nAA=="...),
				"too long": bytes.Repeat([]byte("A"), MaxSignature+4), "wrapped": append(append(append([]byte{}, sig[:8]...), '\n'), sig[8:]...),
			} {
				var bad *SignatureError
				if by, err := keys.Verify(message, sig, today()); !errors.As(err, &bad) || bad.Hint == "" || by != "" {
					t.Errorf("%s: by %q, %v", name, by, err)
				}
			}
			for at := range sig { // each bit that base64 keeps
				flipped := bytes.Clone(sig)
				flipped[at] ^= 1
				if _, err := keys.Verify(message, flipped, today()); err == nil {
					t.Errorf("byte %d altered, and verified", at)
				}
			}
			if _, err := keys.Verify(append([]byte(" "), message...), sig, today()); err == nil {
				t.Error("the message altered, and verified")
			}
		})
	}
}

// cosign signs with the prehashed variant of Ed25519.
func TestEd25519Prehashed(t *testing.T) {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha512.Sum512([]byte("message"))
	raw := must[[]byte](t)(private.Sign(nil, sum[:], &ed25519.Options{Hash: crypto.SHA512}))
	if _, err := keysOf(t, publicPEM(t, private)).Verify([]byte("message"), []byte(base64.StdEncoding.EncodeToString(raw)), today()); err != nil {
		t.Error(err)
	}
}

func TestCertificateValidity(t *testing.T) {
	private := makers()["ecdsa"](t)
	sig := must[[]byte](t)(signerOf(t, private).Sign([]byte("message")))
	certificate := func(from time.Time) *Keys { return keysOf(t, certificatePEM(t, private, from, 0)) }
	tests := []struct {
		name, want string
		keys       *Keys
	}{
		{"expired", `the certificate of "CN=release" expired at 2026-05-04T11:59:59Z`, certificate(today().AddDate(-1, 0, 0).Add(-time.Second))},
		{"not yet valid", `the certificate of "CN=release" is not valid before 2026-05-04T12:00:01Z`, certificate(today().Add(time.Second))},
		{"expired, and a foreign key", "made with another key", keysOf(t, certificatePEM(t, private, today().AddDate(-3, 0, 0), 0), publicPEM(t, makers()["ed25519"](t)))},
	}
	for _, test := range tests {
		if by, err := test.keys.Verify([]byte("message"), sig, today()); err == nil || !strings.Contains(err.Error(), test.want) || by != "" {
			t.Errorf("%s: got %v, want %q", test.name, err, test.want)
		}
	}
	for _, from := range []time.Time{today(), today().AddDate(-1, 0, 0)} { // its first and its last second
		if _, err := certificate(from).Verify([]byte("message"), sig, today()); err != nil {
			t.Error(err)
		}
	}
}

func TestKeysThatAreRefused(t *testing.T) {
	p256 := makers()["ecdsa"](t)
	p384 := must[*ecdsa.PrivateKey](t)(ecdsa.GenerateKey(elliptic.P384(), rand.Reader))
	t.Setenv("GODEBUG", "rsa1024min=0")
	short := must[*rsa.PrivateKey](t)(rsa.GenerateKey(rand.Reader, 1024))
	public := publicPEM(t, p256)
	tests := []struct {
		name string
		data []byte
		want string
	}{
		{"empty", nil, "is empty"},
		{"blank", []byte(" \n"), "is empty"},
		{"no PEM", []byte("ssh-ed25519 AAAA"), "is not PEM"},
		{"something after it", append(bytes.Clone(public), "and more"...), "something else"},
		{"cut", public[:len(public)/2], "is not PEM"},
		{"a private key", privatePEM(t, p256), `"PRIVATE KEY", not a public key`},
		{"nonsense in PEM", encode("PUBLIC KEY", []byte("x")), "is no public key"},
		{"nonsense for a certificate", encode("CERTIFICATE", []byte("x")), "is no certificate"},
		{"another curve", publicPEM(t, p384), "P-384: only P-256"},
		{"short", publicPEM(t, short), "1024 bits"},
		{"another use", certificatePEM(t, p256, today(), x509.KeyUsageCertSign), "not for digital signatures"},
		{"many", bytes.Repeat(public, maxKeys+1), "more than 16"},
		{"huge", bytes.Repeat([]byte("\n"), maxKeyFile+1), "larger than 64 KiB"},
	}
	for _, test := range tests {
		var bad *KeyError
		if _, err := ReadKeys("release.pub", bytes.NewReader(test.data)); !errors.As(err, &bad) || bad.Name != "release.pub" || !strings.Contains(bad.Reason, test.want) {
			t.Errorf("%s: got %v, want %q", test.name, err, test.want)
		}
	}
	for name, load := range map[string]func(string) error{
		"keys":   func(f string) error { _, err := LoadKeys(f); return err },
		"signer": func(f string) error { _, err := LoadSigner(f, nil); return err },
	} {
		var bad *KeyError
		if err := load(filepath.Join(t.TempDir(), "none")); !errors.As(err, &bad) || bad.Reason != "is missing" || bad.Hint == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
}
