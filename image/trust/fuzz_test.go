package trust

import (
	"bytes"
	"encoding/base64"
	"errors"
	"testing"
)

// FuzzKeys: whatever is in a file of keys, it is refused by name or can be
// asked.
func FuzzKeys(f *testing.F) {
	private := makers()["ecdsa"](f)
	f.Add(publicPEM(f, private))
	f.Add(certificatePEM(f, private, today(), 0))
	f.Add(publicPEM(f, makers()["ed25519"](f)))
	f.Add([]byte("-----BEGIN PUBLIC KEY-----\n-----END PUBLIC KEY-----\n"))
	f.Add([]byte("-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n"))
	f.Add(append(publicPEM(f, private), publicPEM(f, private)...))
	sig := must[[]byte](f)(signerOf(f, private).Sign([]byte("message")))
	f.Fuzz(func(t *testing.T, data []byte) {
		keys, err := ReadKeys("fuzz.pub", bytes.NewReader(data))
		var bad *KeyError
		if err != nil {
			if !errors.As(err, &bad) || bad.Name != "fuzz.pub" {
				t.Fatalf("%T is not a KeyError", err)
			}
			return
		}
		if len(keys.keys) == 0 || len(keys.keys) > maxKeys {
			t.Fatalf("%d keys", len(keys.keys))
		}
		var other *SignatureError
		if by, err := keys.Verify([]byte("another message"), sig, today()); err == nil || by != "" || !errors.As(err, &bad) && !errors.As(err, &other) {
			t.Fatalf("by %q, %v", by, err)
		}
	})
}

// FuzzSignature: of all signatures that are not the key's own, none is taken.
func FuzzSignature(f *testing.F) {
	message := []byte("message")
	var all []*Keys
	var raws []string
	for _, make := range makers() {
		private := make(f)
		sig := must[[]byte](f)(signerOf(f, private).Sign(message))
		raw := must[[]byte](f)(base64.StdEncoding.DecodeString(string(sig)))
		all, raws = append(all, keysOf(f, publicPEM(f, private))), append(raws, string(raw))
		f.Add(sig)
		f.Add(sig[:len(sig)/2])
		f.Add(raw)
	}
	f.Add([]byte(""))
	f.Add([]byte("MAA="))         // an empty SEQUENCE
	f.Add([]byte("MAYCAQACAQA=")) // r = s = 0
	f.Fuzz(func(t *testing.T, sig []byte) {
		for i, keys := range all {
			_, err := keys.Verify(message, sig, today())
			var bad *SignatureError
			if err != nil && !errors.As(err, &bad) {
				t.Fatalf("%T is not a SignatureError", err)
			}
			if raw, decoded := decodeSignature(sig); err == nil && (decoded != nil || string(raw) != raws[i]) {
				t.Fatalf("taken: %q", sig)
			}
		}
	})
}
