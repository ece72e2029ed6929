package trust

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature"
)

// Password asks for the password of a key; again tells that it is a new one,
// which a person has to type twice.
type Password = func(again bool) ([]byte, error)

// Signer signs with a private key.
type Signer struct {
	private crypto.PrivateKey
	public  Keys
}

// LoadSigner reads a private key in PEM. password is asked only where the key is
// encrypted. What is wrong with the key, or the password, is a *KeyError.
func LoadSigner(name string, password Password) (*Signer, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, missing(name, err)
	}
	defer f.Close()
	data, err := readBounded(name, f)
	if err != nil {
		return nil, err
	}
	return ParseSigner(name, data, password)
}

// ParseSigner is LoadSigner of a file's bytes.
func ParseSigner(name string, data []byte, password Password) (*Signer, error) {
	block, rest := pem.Decode(data)
	if block == nil || len(bytes.TrimSpace(rest)) > 0 {
		return nil, &KeyError{name, "is not one private key in PEM", hintKey}
	}
	private, err := cryptoutils.UnmarshalPEMToPrivateKey(data, password)
	if err != nil {
		return nil, &KeyError{name, "cannot be read as a private key: " + err.Error(), "an encrypted key's password is in COSIGN_PASSWORD"}
	}
	public, err := publicOf(private)
	if err != nil {
		return nil, &KeyError{name, err.Error(), hintKey}
	}
	k, err := newKey(public, nil)
	if err != nil {
		return nil, &KeyError{name, err.Error(), hintKey}
	}
	return &Signer{private, Keys{name, []key{k}}}, nil
}

func publicOf(private crypto.PrivateKey) (crypto.PublicKey, error) {
	switch p := private.(type) {
	case *ecdsa.PrivateKey:
		return &p.PublicKey, nil
	case *rsa.PrivateKey:
		return &p.PublicKey, nil
	case ed25519.PrivateKey:
		return p.Public(), nil
	}
	return nil, fmt.Errorf("is a %T: ECDSA P-256, Ed25519 and RSA keys are taken", private)
}

// Fingerprint is the sha256 of the public key in DER (PKIX), as
// `openssl pkey -pubout -outform der | sha256sum` prints it.
func (s *Signer) Fingerprint() string { return s.public.keys[0].fingerprint }

// Sign returns the message's signature in base64, as `cosign sign-blob` writes
// it. The same key and message give the same signature.
func (s *Signer) Sign(message []byte) ([]byte, error) {
	raw, err := s.sign(message)
	if err != nil {
		return nil, fmt.Errorf("sign: %w", err)
	}
	line := []byte(base64.StdEncoding.EncodeToString(raw))
	if _, err := s.public.Verify(message, line, time.Time{}); err != nil {
		return nil, fmt.Errorf("sign: the signature cannot be verified: %w", err)
	}
	return line, nil
}

func (s *Signer) sign(message []byte) ([]byte, error) {
	if p, ok := s.private.(*ecdsa.PrivateKey); ok {
		// sigstore's would put chance into it; without any it is RFC 6979's.
		sum := sha256.Sum256(message)
		return p.Sign(nil, sum[:], crypto.SHA256)
	}
	signer, err := signature.LoadSigner(s.private, crypto.SHA256)
	if err != nil {
		return nil, err
	}
	return signer.SignMessage(bytes.NewReader(message))
}

// NewPair makes an ECDSA P-256 key as `cosign generate-key-pair` does: private
// encrypted with a password, which may be empty.
func NewPair(password Password) (private, public []byte, err error) {
	private, public, err = cryptoutils.GeneratePEMEncodedECDSAKeyPair(elliptic.P256(), password)
	if err != nil {
		return nil, nil, fmt.Errorf("make a key: %w", err)
	}
	if len(private) == 0 || len(public) == 0 {
		return nil, nil, errors.New("make a key: it is empty")
	}
	return private, public, nil
}
