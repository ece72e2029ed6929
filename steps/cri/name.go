package cri

import "github.com/distribution/reference"

// ImageName is the name under which CRI has the image that a reference asks for:
// whole, with the registry and a tag, and by the digest alone where there is one.
// It is the same for a name of that form. What is no reference stays what it is:
// CRI refuses it (PullImage in containerd's internal/cri/server/images).
func ImageName(ref string) string {
	named, err := reference.ParseDockerRef(ref)
	if err != nil {
		return ref
	}
	return named.String()
}
