package image

import (
	"fmt"
	"path"
	"path/filepath"
	"regexp"
	"strings"
)

var (
	nameSyntax    = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{0,62}$`)
	versionSyntax = regexp.MustCompile(`^v[0-9]{1,9}\.[0-9]{1,9}\.[0-9]{1,9}([.+~-][0-9A-Za-z.+~-]{1,80})?$`)
	sha256Syntax  = regexp.MustCompile(`^[0-9a-f]{64}$`)
	pathSyntax    = regexp.MustCompile(`^[A-Za-z0-9._+/-]+$`)
)

const (
	maxFileSize = 1 << 40
	maxPath     = 1024
)

// validate checks what a manifest says against what a manifest may say.
func validate(m Manifest) error {
	bad := func(format string, args ...any) error {
		return &BadBundleError{ManifestName, fmt.Sprintf(format, args...), hintBuild}
	}
	if _, known := machines(m.Architecture); !known {
		return bad("is for the unknown architecture %q", m.Architecture)
	}
	if !versionSyntax.MatchString(m.KubernetesVersion) {
		return bad("has the Kubernetes version %q, not one like v1.36.3", m.KubernetesVersion)
	}
	files := make(map[string]int, len(m.Components))
	last := ""
	for _, c := range m.Components {
		if !nameSyntax.MatchString(c.Name) {
			return bad("has a component with the name %q", c.Name)
		}
		if c.Name <= last {
			return bad("has the component %s twice or out of order", c.Name)
		}
		last = c.Name
		if !versionSyntax.MatchString(c.Version) {
			return bad("has the version %q of %s, not one like v1.2.3", c.Version, c.Name)
		}
		if followsKubernetes(c.Name) && c.Version != m.KubernetesVersion {
			return bad("has %s %s in a bundle of Kubernetes %s", c.Name, c.Version, m.KubernetesVersion)
		}
		files[c.Name] = 0
	}
	if len(m.Files) == 0 {
		return bad("names no file")
	}
	places := make(map[string]string, len(m.Files))
	last = ""
	for _, f := range m.Files {
		if err := validateFile(f); err != nil {
			return err
		}
		switch {
		case f.Path == last:
			return badFile(f.Path, "is in the manifest twice")
		case f.Path < last:
			return badFile(f.Path, "is out of order in the manifest")
		}
		last = f.Path
		if other, ok := places[f.Place]; ok && f.Place != "" {
			return badFile(f.Path, "has the same place on the host as "+other)
		}
		places[f.Place] = f.Path
		if _, ok := files[f.Component]; !ok {
			return badFile(f.Path, fmt.Sprintf("belongs to %q, which is not among the components", f.Component))
		}
		files[f.Component]++
	}
	for _, c := range m.Components {
		if files[c.Name] == 0 {
			return bad("has no file for %s", c.Name)
		}
	}
	if _, images := files[Images]; images != (m.SchemaVersion == SchemaVersionImages) {
		return bad("has schema version %d, which is for bundles with images and for no others", SchemaVersionImages)
	}
	return nil
}

// followsKubernetes tells whether a component has Kubernetes' own version.
func followsKubernetes(component string) bool {
	return component == Kubeadm || component == Kubelet || component == Kubectl || component == Images
}

func validateFile(f File) error {
	local := filepath.IsLocal(f.Path) && path.Clean(f.Path) == f.Path && f.Path != "."
	switch {
	case !local || len(f.Path) > maxPath || !pathSyntax.MatchString(f.Path):
		return badFile(f.Path, "is not a clean path inside the bundle")
	case f.Path == ManifestName:
		return badFile(f.Path, "names the manifest itself")
	case f.Path == SignatureName:
		return badFile(f.Path, "names the manifest's signature")
	case f.Component == Images || strings.HasPrefix(f.Path, Images+"/"):
		if err := validateImageFile(f); err != nil {
			return err
		}
	case !path.IsAbs(f.Place) || path.Clean(f.Place) != f.Place || f.Place == "/" || len(f.Place) > maxPath || !pathSyntax.MatchString(f.Place):
		return badFile(f.Path, fmt.Sprintf("has the place %q, not a clean absolute path", f.Place))
	}
	switch {
	case !sha256Syntax.MatchString(f.SHA256):
		return badFile(f.Path, "has no valid sha256 in the manifest")
	case f.Size <= 0 || f.Size > maxFileSize:
		return badFile(f.Path, fmt.Sprintf("has the size %d in the manifest", f.Size))
	case f.Mode&^0o777 != 0:
		return badFile(f.Path, fmt.Sprintf("has the mode %s: set-id and sticky bits are refused", f.Mode))
	case f.Mode&0o022 != 0 || f.Mode&0o400 == 0:
		return badFile(f.Path, fmt.Sprintf("has the mode %s: only the owner may write, and must be able to read", f.Mode))
	}
	return nil
}

// validateImageFile refuses what is no file of an OCI layout. A blob has the
// name of its own sha256, so that the manifest alone proves the layout's.
func validateImageFile(f File) error {
	switch {
	case f.Component != Images:
		return badFile(f.Path, "is below "+Images+"/, and does not belong to it")
	case f.Path != imagesLayout && f.Path != imagesIndex && f.Path != imagesBlobs+f.SHA256:
		return badFile(f.Path, "is no file of an OCI layout below "+Images+"/")
	case f.Place != "":
		return badFile(f.Path, fmt.Sprintf("has the place %q: an image has none on the host", f.Place))
	}
	return nil
}
