package trust

import (
	"bytes"
	"encoding/base64"
	"strings"
	"time"
)

// MaxSignature is more than any signature is long, in base64.
const MaxSignature = 4 << 10

const hintSignature = "use what its maker has signed and the key that the maker published; sign with: upgrader bundle sign --key KEY"

// Verify checks a signature of a message, in base64 as cosign writes it, by any
// of the keys; by is the fingerprint of the one that made it. A signature that
// is none, is another message's or was made by another key is a
// *SignatureError. A certificate that is not valid now is a *KeyError, unless
// another key has made the signature.
func (k *Keys) Verify(message, sig []byte, now time.Time) (by string, err error) {
	raw, err := decodeSignature(sig)
	if err != nil {
		return "", err
	}
	var stale error
	var asked []string
	for _, one := range k.keys {
		if err := one.valid(now); err != nil {
			stale = &KeyError{k.name, err.Error(), "use the certificate that is valid now; the clock says " + now.UTC().Format(time.RFC3339)}
			continue
		}
		if one.made(raw, message) {
			return one.fingerprint, nil
		}
		asked = append(asked, one.fingerprint)
	}
	if len(asked) == 0 {
		return "", stale
	}
	return "", &SignatureError{
		"is not by " + k.name + " (" + strings.Join(asked, ", ") + "): made with another key, or of something else",
		hintSignature,
	}
}

func (k key) made(raw, message []byte) bool {
	for _, v := range k.verifiers {
		if v.VerifySignature(bytes.NewReader(raw), bytes.NewReader(message)) == nil {
			return true
		}
	}
	return false
}

// decodeSignature takes one line of base64.
func decodeSignature(sig []byte) ([]byte, error) {
	bad := func(reason string) ([]byte, error) { return nil, &SignatureError{reason, hintSignature} }
	line := bytes.TrimSpace(sig)
	switch {
	case len(sig) > MaxSignature:
		return bad("is too long for a signature")
	case len(line) == 0:
		return bad("is empty")
	case bytes.ContainsAny(line, "\r\n"):
		return bad("is more than one line of base64")
	}
	raw, err := base64.StdEncoding.Strict().DecodeString(string(line))
	if err != nil {
		return bad("is not base64, or cut off: " + err.Error())
	}
	return raw, nil
}
