package attach

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/sigstore/sigstore/pkg/signature/payload"

	"github.com/node-upgrader/node-upgrader/image/oci"
	"github.com/node-upgrader/node-upgrader/image/trust"
)

// maxPayload bounds what a signature signs, and maxSBOM an SBOM.
const (
	maxPayload = 64 << 10
	maxSBOM    = 64 << 20
	maxSigners = 64
)

const hintSigned = "use the image that was signed, or sign it: upgrader bundle image --sign-key KEY"

// Verify checks that one of the keys has signed a manifest of a layout, and
// returns that key's fingerprint. cosign puts several signatures into one image:
// one that is good is enough. What is wrong with them is a
// *trust.SignatureError, with the keys a *trust.KeyError. The image's own blobs
// are not read.
func Verify(l *oci.Layout, m oci.Manifest, keys *trust.Keys, now time.Time) (by string, err error) {
	by, err = verify(l, m, keys, now)
	if err != nil {
		return "", fmt.Errorf("verify the image's signature: %w", err)
	}
	return by, nil
}

func verify(l *oci.Layout, m oci.Manifest, keys *trust.Keys, now time.Time) (string, error) {
	digest, err := m.Digest()
	if err != nil {
		return "", err
	}
	img, err := find(l, digest, oci.Signature)
	if errors.Is(err, oci.ErrNotFound) {
		return "", &trust.SignatureError{Reason: digest.String() + " is not signed", Hint: hintSigned}
	}
	if err != nil {
		return "", err
	}
	list, err := img.Manifest()
	if err != nil {
		return "", err
	}
	if len(list.Layers) > maxSigners {
		return "", &trust.SignatureError{Reason: fmt.Sprintf("%s has more than %d signatures", digest, maxSigners), Hint: hintSigned}
	}
	wrong := error(&trust.SignatureError{Reason: digest.String() + " has no signature in cosign's form", Hint: hintSigned})
	for _, d := range list.Layers {
		if d.MediaType != signatureType {
			continue
		}
		by, err := one(img, d, digest, keys, now)
		if err == nil {
			return by, nil
		}
		wrong = err
	}
	return "", wrong
}

// one checks one signature.
func one(img v1.Image, d v1.Descriptor, digest v1.Hash, keys *trust.Keys, now time.Time) (string, error) {
	message, err := layer(img, d, maxPayload)
	if err != nil {
		return "", err
	}
	by, err := keys.Verify(message, []byte(d.Annotations[signatureAnnotation]), now)
	if err != nil {
		return "", err
	}
	// Only what was signed is parsed.
	var says payload.SimpleContainerImage
	if err := json.Unmarshal(message, &says); err != nil || says.Critical.Type != payload.CosignSignatureType {
		return "", &trust.SignatureError{Reason: "is not of an image", Hint: hintSigned}
	}
	if says.Critical.Image.DockerManifestDigest != digest.String() {
		return "", &trust.SignatureError{
			Reason: "is of another image, " + says.Critical.Image.DockerManifestDigest + ", not of " + digest.String(), Hint: hintSigned,
		}
	}
	return by, nil
}

// find is what is attached to a manifest, an image.
func find(l *oci.Layout, digest v1.Hash, kind string) (v1.Image, error) {
	a, err := l.Find(oci.AttachedTag(digest, kind))
	if err != nil {
		return nil, err
	}
	img, ok := a.Manifest.(v1.Image)
	if !ok {
		return nil, &trust.SignatureError{Reason: a.Tag + " is an index, not an image", Hint: hintSigned}
	}
	return img, nil
}

// layer reads a small layer as it lies there.
func layer(img v1.Image, d v1.Descriptor, most int64) ([]byte, error) {
	if d.Size > most {
		return nil, &trust.SignatureError{Reason: fmt.Sprintf("%s is larger than %d KiB", d.Digest, most>>10), Hint: hintSigned}
	}
	l, err := img.LayerByDigest(d.Digest)
	if err != nil {
		return nil, err
	}
	r, err := l.Compressed()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r)
}

// SBOM is what is attached to an image as its SBOM; oci.ErrNotFound where there
// is none. Who made it is Verify's to say, of the manifest that is returned.
func SBOM(l *oci.Layout, digest v1.Hash) (data []byte, img oci.Manifest, err error) {
	found, err := find(l, digest, oci.SBOM)
	if err != nil {
		return nil, nil, fmt.Errorf("find the SBOM: %w", err)
	}
	list, err := found.Manifest()
	if err != nil {
		return nil, nil, fmt.Errorf("find the SBOM: %w", err)
	}
	for _, d := range list.Layers {
		if d.MediaType == sbomType {
			data, err := layer(found, d, maxSBOM)
			return data, found, err
		}
	}
	return nil, nil, fmt.Errorf("find the SBOM: no SPDX document in what is attached: %w", oci.ErrNotFound)
}
