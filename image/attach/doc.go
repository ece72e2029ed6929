// Package attach makes what is attached to an image so that cosign finds it: its
// signature and its SBOM, each a small image of its own under a tag that is made
// from the digest, and checks both.
//
//	sha256-<hex>.sig    the signature; the layer is the "simple signing" payload
//	                    with the image's digest, an annotation has the signature
//	sha256-<hex>.sbom   the SBOM, as `cosign attach sbom --type spdx` leaves it
//
// Of an image for several architectures the index and each of its images are
// signed, and so are the SBOMs. A registry needs no API of its own for that, and
// a copy by tags is complete.
package attach
