package attach

import (
	"encoding/json"
	"fmt"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/sigstore/sigstore/pkg/signature/payload"

	"github.com/node-upgrader/node-upgrader/image/oci"
	"github.com/node-upgrader/node-upgrader/image/trust"
)

// As cosign spells them.
const (
	signatureType       types.MediaType = "application/vnd.dev.cosign.simplesigning.v1+json"
	sbomType            types.MediaType = "text/spdx+json"
	signatureAnnotation                 = "dev.cosignproject.cosign/signature"
)

// Options say what is attached.
type Options struct {
	Repository string            // registry/repository, which the signature names
	Signer     *trust.Signer     // nil: nothing is signed
	SBOMs      map[string][]byte // by architecture; nil: none
}

// To makes what is attached to an image, or to an index and each image in it.
// The same input gives the same bytes.
func To(m oci.Manifest, o Options) ([]oci.Artifact, error) {
	all, err := to(m, o)
	if err != nil {
		return nil, fmt.Errorf("attach to the image: %w", err)
	}
	return all, nil
}

func to(m oci.Manifest, o Options) ([]oci.Artifact, error) {
	all, err := signed(m, o)
	if err != nil {
		return nil, err
	}
	switch m := m.(type) {
	case v1.ImageIndex:
		list, err := m.IndexManifest()
		if err != nil {
			return nil, err
		}
		for _, d := range list.Manifests {
			img, err := m.Image(d.Digest)
			if err != nil {
				return nil, err
			}
			below, err := to(img, o)
			if err != nil {
				return nil, err
			}
			all = append(all, below...)
		}
	case v1.Image:
		config, err := m.ConfigFile()
		if err != nil {
			return nil, err
		}
		if data := o.SBOMs[config.Architecture]; data != nil {
			sbom, err := attachment(m, oci.SBOM, mutate.Addendum{Layer: static.NewLayer(data, sbomType)})
			if err != nil {
				return nil, err
			}
			own, err := signed(sbom.Manifest, o)
			if err != nil {
				return nil, err
			}
			all = append(append(all, sbom), own...)
		}
	}
	return all, nil
}

// signed is the signature of a manifest, where one is wanted.
func signed(m oci.Manifest, o Options) ([]oci.Artifact, error) {
	if o.Signer == nil {
		return nil, nil
	}
	digest, err := m.Digest()
	if err != nil {
		return nil, err
	}
	ref, err := name.NewDigest(o.Repository+"@"+digest.String(), name.StrictValidation)
	if err != nil {
		return nil, err
	}
	message, err := json.Marshal(payload.Cosign{Image: ref})
	if err != nil {
		return nil, err
	}
	sig, err := o.Signer.Sign(message)
	if err != nil {
		return nil, err
	}
	a, err := attachment(m, oci.Signature, mutate.Addendum{
		Layer: static.NewLayer(message, signatureType), Annotations: map[string]string{signatureAnnotation: string(sig)},
	})
	return []oci.Artifact{a}, err
}

// attachment is an image of one layer, under the tag of another manifest.
func attachment(to oci.Manifest, kind string, layer mutate.Addendum) (oci.Artifact, error) {
	digest, err := to.Digest()
	if err != nil {
		return oci.Artifact{}, err
	}
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	img, err := mutate.Append(base, layer)
	if err != nil {
		return oci.Artifact{}, err
	}
	return oci.Artifact{Tag: oci.AttachedTag(digest, kind), Manifest: img}, nil
}
