package trust

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature"
	"github.com/sigstore/sigstore/pkg/signature/options"
)

const (
	// maxKeyFile bounds what is read of a file with keys.
	maxKeyFile = 64 << 10
	// maxKeys is more than a rotation of keys needs.
	maxKeys = 16

	hintKey = "make a pair with: upgrader bundle keygen"
)

// Keys are public keys; a signature by any of them is good.
type Keys struct {
	name string
	keys []key
}

type key struct {
	fingerprint string
	certificate *x509.Certificate // nil: a bare key, which does not expire
	verifiers   []signature.Verifier
}

// LoadKeys reads a file of public keys and certificates in PEM. What is wrong
// with it is a *KeyError.
func LoadKeys(name string) (*Keys, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, missing(name, err)
	}
	defer f.Close()
	return ReadKeys(name, f)
}

// ReadKeys is LoadKeys of a file that is open. It reads 64 KiB at most.
func ReadKeys(name string, r io.Reader) (*Keys, error) {
	data, err := readBounded(name, r)
	if err != nil {
		return nil, err
	}
	all := &Keys{name: name}
	for rest := bytes.TrimSpace(data); len(rest) > 0; rest = bytes.TrimSpace(rest) {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return nil, &KeyError{name, "is not PEM, or something else is in it too", hintKey}
		}
		if len(all.keys) == maxKeys {
			return nil, &KeyError{name, fmt.Sprintf("has more than %d keys", maxKeys), ""}
		}
		k, err := parseKey(block)
		if err != nil {
			return nil, &KeyError{name, err.Error(), hintKey}
		}
		all.keys = append(all.keys, k)
	}
	if len(all.keys) == 0 {
		return nil, &KeyError{name, "is empty", hintKey}
	}
	return all, nil
}

func missing(name string, err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return &KeyError{name, "is missing", hintKey}
	}
	return err
}

func readBounded(name string, r io.Reader) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxKeyFile+1))
	if err != nil {
		return nil, fmt.Errorf("read key %s: %w", name, err)
	}
	if len(data) > maxKeyFile {
		return nil, &KeyError{name, fmt.Sprintf("is larger than %d KiB", maxKeyFile>>10), hintKey}
	}
	return data, nil
}

func parseKey(block *pem.Block) (key, error) {
	switch block.Type {
	case "CERTIFICATE":
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return key{}, fmt.Errorf("is no certificate: %w", err)
		}
		if c.KeyUsage != 0 && c.KeyUsage&x509.KeyUsageDigitalSignature == 0 {
			return key{}, errors.New("is a certificate whose key is not for digital signatures")
		}
		return newKey(c.PublicKey, c)
	case "PUBLIC KEY", "RSA PUBLIC KEY":
		pub, err := cryptoutils.UnmarshalPEMToPublicKey(pem.EncodeToMemory(block))
		if err != nil {
			return key{}, fmt.Errorf("is no public key: %w", err)
		}
		return newKey(pub, nil)
	}
	return key{}, fmt.Errorf("has a PEM block %q, not a public key or a certificate", block.Type)
}

func newKey(pub crypto.PublicKey, c *x509.Certificate) (key, error) {
	k := key{certificate: c}
	if err := suits(pub); err != nil {
		return k, err
	}
	der, err := cryptoutils.MarshalPublicKeyToDER(pub)
	if err != nil {
		return k, err
	}
	sum := sha256.Sum256(der)
	k.fingerprint = "sha256:" + hex.EncodeToString(sum[:])
	v, err := signature.LoadVerifier(pub, crypto.SHA256)
	if err != nil {
		return k, err
	}
	k.verifiers = append(k.verifiers, v)
	if _, ok := pub.(ed25519.PublicKey); ok {
		ph, err := signature.LoadVerifierWithOpts(pub, options.WithED25519ph())
		if err != nil {
			return k, err
		}
		k.verifiers = append(k.verifiers, ph)
	}
	return k, nil
}

// suits refuses what is weak, and what cosign would check with another hash.
func suits(pub crypto.PublicKey) error {
	switch p := pub.(type) {
	case *ecdsa.PublicKey:
		if p.Curve != elliptic.P256() {
			return fmt.Errorf("is an ECDSA key on %s: only P-256 is taken", p.Curve.Params().Name)
		}
		return nil
	case *rsa.PublicKey:
		if bits := p.N.BitLen(); bits != 2048 && bits != 3072 && bits != 4096 {
			return fmt.Errorf("is an RSA key of %d bits: 2048, 3072 and 4096 are taken", bits)
		}
		return nil
	case ed25519.PublicKey:
		return nil
	}
	return fmt.Errorf("is a %T: ECDSA P-256, Ed25519 and RSA keys are taken", pub)
}

// valid is nil for a key that may be used at a time.
func (k key) valid(now time.Time) error {
	c := k.certificate
	switch {
	case c == nil:
		return nil
	case now.After(c.NotAfter):
		return fmt.Errorf("the certificate of %q expired at %s", c.Subject, c.NotAfter.UTC().Format(time.RFC3339))
	case now.Before(c.NotBefore):
		return fmt.Errorf("the certificate of %q is not valid before %s", c.Subject, c.NotBefore.UTC().Format(time.RFC3339))
	}
	return nil
}
