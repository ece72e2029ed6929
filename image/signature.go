package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/node-upgrader/node-upgrader/image/trust"
)

// SignatureName is the one file that a bundle may have without its manifest
// naming it: the signature of bundle.json's bytes.
const SignatureName = ManifestName + ".sig"

const hintSign = "use the bundle that was signed, or sign it: upgrader bundle sign --key KEY DIR"

// Signed tells whether a signature lies beside the manifest. Whose it is, and
// whether it is this manifest's, is VerifySignature's to say.
func (b *Bundle) Signed() bool { return b.signature != nil }

// SameSignature tells whether two bundles of the same digest have the same
// signature, or none.
func (b *Bundle) SameSignature(other *Bundle) bool {
	return b.Signed() == other.Signed() && bytes.Equal(b.signature, other.signature)
}

// VerifySignature checks that the bundle was signed by one of the keys and
// returns that key's fingerprint. A signature that is missing, damaged, another
// bundle's or another key's is a *BadBundleError; a certificate that is not
// valid now is a *trust.KeyError. The files' contents are not read: see Verify.
func (b *Bundle) VerifySignature(keys *trust.Keys, now time.Time) (by string, err error) {
	manifest, err := readManifest(b.Dir)
	switch {
	case err != nil:
	case digestOf(manifest) != b.Digest:
		err = badFile(ManifestName, "changed since the bundle was opened")
	case b.signature == nil:
		err = &BadBundleError{SignatureName, "is missing: a signature of the bundle is required", hintSign}
	default:
		by, err = keys.Verify(manifest, b.signature, now)
	}
	var wrong *trust.SignatureError
	if errors.As(err, &wrong) {
		err = &BadBundleError{SignatureName, wrong.Reason, wrong.Hint}
	}
	if err != nil {
		return "", fmt.Errorf("verify signature: %w", err)
	}
	return by, nil
}

// Sign reads every byte of a bundle, as Verify does, and puts the signature of
// its manifest beside it, in place of one that is there. After an error or a
// crash the bundle is as it was. The bundle's digest does not change.
func Sign(ctx context.Context, b *Bundle, s *trust.Signer) error {
	if err := b.Verify(ctx, nil); err != nil {
		return err
	}
	if err := sign(b, s); err != nil {
		return fmt.Errorf("sign bundle: %w", err)
	}
	return nil
}

func sign(b *Bundle, s *trust.Signer) (err error) {
	manifest, err := readManifest(b.Dir)
	if err != nil {
		return err
	}
	if digestOf(manifest) != b.Digest {
		return badFile(ManifestName, "changed since the bundle was opened")
	}
	sig, err := s.Sign(manifest)
	if err != nil {
		return err
	}
	dir, err := filepath.Abs(b.Dir)
	if err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dir), ".sign-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	if err := writeSignature(tmp, dir, sig); err != nil {
		return err
	}
	b.signature = sig
	epoch := time.Unix(0, 0) // as Build's own files
	return errors.Join(os.Chtimes(filepath.Join(dir, SignatureName), epoch, epoch), os.Chtimes(dir, epoch, epoch))
}

func writeSignature(temp, dir string, sig []byte) error {
	return replaceFrom(temp, dir, SignatureName, 0o644, func(f *os.File) error {
		_, err := f.Write(sig)
		return err
	})
}

func readSignature(dir string) ([]byte, error) {
	return readSmall(dir, SignatureName, trust.MaxSignature)
}

// signatureFile is what a copy of the signature is compared with.
func signatureFile(sig []byte) File {
	return File{Path: SignatureName, Size: int64(len(sig)), Mode: 0o644, SHA256: strings.TrimPrefix(digestOf(sig), "sha256:")}
}

// renewSignature gives a sound stage the signature of the bundle that is staged
// again: it may have been signed since, or with another key. now learns what the
// file looks like. A bundle without a signature leaves the stage its own.
func renewSignature(o StageOptions, b *Bundle, stage string, s Staged, now *stamp) (changed bool, err error) {
	if !b.Signed() || b.SameSignature(s.Bundle) {
		return false, nil
	}
	if err := o.change("write", s.Bundle.Dir, SignatureName); err != nil {
		return false, err
	}
	if err := writeSignature(stage, s.Bundle.Dir, b.signature); err != nil {
		return false, err
	}
	fi, err := os.Lstat(filepath.Join(s.Bundle.Dir, SignatureName))
	if err != nil {
		return false, err
	}
	now.Files[SignatureName] = looksOf(fi)
	s.Bundle.signature = b.signature
	return true, nil
}
