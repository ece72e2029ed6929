package tables

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/node-upgrader/node-upgrader/image"
	"github.com/node-upgrader/node-upgrader/image/trust"
)

// keyPair is a private key and what is published of it.
type keyPair struct {
	private *ecdsa.PrivateKey
	signer  *trust.Signer
	public  []byte
}

func newKeyPair(t *testing.T) keyPair {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	der, err := x509.MarshalPKCS8PrivateKey(private)
	must(t, err)
	signer, err := trust.ParseSigner("key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil)
	must(t, err)
	public, err := x509.MarshalPKIXPublicKey(&private.PublicKey)
	must(t, err)
	return keyPair{private, signer, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public})}
}

// certificate is of the key, for a year.
func (k keyPair) certificate(from time.Time) []byte {
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "release"},
		NotBefore: from, NotAfter: from.AddDate(1, 0, 0), KeyUsage: x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &k.private.PublicKey, k.private)
	if err != nil {
		panic(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// signBundle signs as `upgrader bundle sign` does, in place of a signature that
// is there.
func signBundle(dir string, key keyPair) error {
	data, err := os.ReadFile(filepath.Join(dir, image.ManifestName))
	if err != nil {
		return err
	}
	line, err := key.signer.Sign(data)
	return errors.Join(err, os.WriteFile(filepath.Join(dir, image.SignatureName), line, 0o644)) //nolint:gosec // not secret
}
