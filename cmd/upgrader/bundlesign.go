package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/node-upgrader/node-upgrader/image"
	"github.com/node-upgrader/node-upgrader/image/trust"
	"github.com/node-upgrader/node-upgrader/steps"
)

func newBundleVerify() *cobra.Command {
	var key string
	cmd := &cobra.Command{
		Use: "verify [--key PUB] DIR|ARCHIVE", Short: "Hash every file of a bundle or an image, and check who signed it", Args: cobra.ExactArgs(1),
		Long: `Hash every file of a bundle and compare it with the manifest. Of an image, as an
OCI archive or layout, every blob is compared with its digest, and the files in it
with its SBOM, where one is attached. With --key the bundle, or the image and its
SBOM, must have been signed by that key, or by one of those in the file.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if isImage(args[0]) {
				return verifyImage(cmd.Context(), cmd.OutOrStdout(), args[0], key)
			}
			b, err := image.OpenAny(args[0])
			if err != nil {
				return err
			}
			signed, err := verifySignature(b, key)
			if err != nil {
				return err
			}
			if err := b.Verify(cmd.Context(), nil); err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), b.Digest+signed)
			return err
		},
	}
	cmd.Flags().StringVar(&key, "key", "", "public key or certificate, or several, in PEM; one of them must have signed the bundle")
	return cmd
}

// verifySignature returns a line about who signed the bundle, where that is
// asked.
func verifySignature(b *image.Bundle, key string) (string, error) {
	if key == "" {
		return "", nil
	}
	keys, err := trust.LoadKeys(key)
	if err != nil {
		return "", err
	}
	by, err := b.VerifySignature(keys, time.Now())
	if err != nil {
		return "", err
	}
	return "\nsigned by " + by, nil
}

func newBundleSign() *cobra.Command {
	var key string
	cmd := &cobra.Command{
		Use: "sign --key KEY DIR", Short: "Sign a bundle", Args: cobra.ExactArgs(1),
		Long: `Verify a bundle, sign its bundle.json and leave the signature beside it, in
bundle.json.sig. The digest does not change. KEY is a private key in PEM: ECDSA
P-256, Ed25519 or RSA, or cosign's; an encrypted key's password is asked for, or
is in COSIGN_PASSWORD. Nothing is sent anywhere. cosign verifies the same:

  cosign verify-blob --key PUB --insecure-ignore-tlog \
    --signature DIR/bundle.json.sig DIR/bundle.json`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if key == "" {
				return &steps.UsageError{Reason: "bundle sign: --key KEY is needed (upgrader bundle keygen makes one)"}
			}
			b, err := image.OpenAny(args[0])
			if err != nil {
				return err
			}
			signer, err := trust.LoadSigner(key, askPassword)
			if err != nil {
				return err
			}
			if err := image.Sign(cmd.Context(), b, signer); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s\nsigned by %s\n", b.Digest, signer.Fingerprint())
			return err
		},
	}
	cmd.Flags().StringVar(&key, "key", "", "private key in PEM")
	return cmd
}

func newBundleKeygen() *cobra.Command {
	var out string
	cmd := &cobra.Command{
		Use: "keygen [--out NAME]", Short: "Make a pair of keys to sign bundles with",
		Long: `Make an ECDSA P-256 pair as cosign generate-key-pair does: NAME.key, encrypted
with a password that is asked for or is in COSIGN_PASSWORD, and NAME.pub. What is
there is not replaced.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			private, public, err := trust.NewPair(askPassword)
			if err != nil {
				return err
			}
			if err := writeNew(out+".pub", public, 0o644); err != nil {
				return err
			}
			if err := writeNew(out+".key", private, 0o600); err != nil {
				return errors.Join(err, os.Remove(out+".pub"))
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s.key\n%s.pub\n", out, out)
			return err
		},
	}
	cmd.Flags().StringVar(&out, "out", "upgrader", "where the two files go, without their endings")
	return cmd
}

func writeNew(name string, data []byte, mode os.FileMode) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if errors.Is(err, fs.ErrExist) {
		return &steps.HintError{Err: err, Hint: "a key that was used is kept: choose another name with --out"}
	}
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Sync(), f.Close())
}

// askPassword is the password of a private key, as cosign finds it.
func askPassword(again bool) ([]byte, error) {
	if pw, ok := os.LookupEnv("COSIGN_PASSWORD"); ok {
		return []byte(pw), nil
	}
	if !term.IsTerminal(int(os.Stdin.Fd())) {
		return nil, errors.New("no password: COSIGN_PASSWORD is not set, and there is no terminal to ask at")
	}
	return cryptoutils.GetPasswordFromStdIn(again)
}
