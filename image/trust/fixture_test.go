package trust

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"
	"time"
)

// today is when the tests take place.
func today() time.Time { return time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC) }

func must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// makers make private keys of the kinds that are taken.
func makers() map[string]func(testing.TB) crypto.Signer {
	return map[string]func(testing.TB) crypto.Signer{
		"ecdsa": func(t testing.TB) crypto.Signer {
			return must[*ecdsa.PrivateKey](t)(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
		},
		"rsa": func(t testing.TB) crypto.Signer { return must[*rsa.PrivateKey](t)(rsa.GenerateKey(rand.Reader, 2048)) },
		"ed25519": func(t testing.TB) crypto.Signer {
			_, private, err := ed25519.GenerateKey(rand.Reader)
			if err != nil {
				t.Fatal(err)
			}
			return private
		},
	}
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

func privatePEM(t testing.TB, key crypto.Signer) []byte {
	t.Helper()
	return encode("PRIVATE KEY", must[[]byte](t)(x509.MarshalPKCS8PrivateKey(key)))
}

func publicPEM(t testing.TB, key crypto.Signer) []byte {
	t.Helper()
	return encode("PUBLIC KEY", must[[]byte](t)(x509.MarshalPKIXPublicKey(key.Public())))
}

// certificatePEM is valid for a year from a time on.
func certificatePEM(t testing.TB, key crypto.Signer, from time.Time, usage x509.KeyUsage) []byte {
	t.Helper()
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "release"},
		NotBefore: from, NotAfter: from.AddDate(1, 0, 0), KeyUsage: usage,
	}
	return encode("CERTIFICATE", must[[]byte](t)(x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)))
}

func keysOf(t testing.TB, data ...[]byte) *Keys {
	t.Helper()
	var all strings.Builder
	for _, d := range data {
		all.Write(d)
	}
	return must[*Keys](t)(ReadKeys("release.pub", strings.NewReader(all.String())))
}

func signerOf(t testing.TB, key crypto.Signer) *Signer {
	t.Helper()
	return must[*Signer](t)(ParseSigner("release.key", privatePEM(t, key), nil))
}
