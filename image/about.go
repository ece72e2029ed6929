package image

import (
	"errors"
	"fmt"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/node-upgrader/node-upgrader/image/oci"
)

// About is what an image of the upgrader says of itself.
type About struct {
	Kubernetes    string // the version that it brings, as v1.36.3
	Architectures []string
	Bundles       map[string]string // digest of the bundle by architecture
}

// Describe reads the labels of an image that Pack made, or a Dockerfile. An image
// that is not the upgrader's, or whose architectures do not have one version, is
// an error.
func Describe(m oci.Manifest) (About, error) {
	a := About{Bundles: map[string]string{}}
	switch m := m.(type) {
	case v1.Image:
		return a, a.add(m)
	case v1.ImageIndex:
		list, err := m.IndexManifest()
		if err != nil {
			return a, err
		}
		for _, d := range list.Manifests {
			if d.Platform != nil && d.Platform.OS == "unknown" { // what buildx attaches
				continue
			}
			img, err := m.Image(d.Digest)
			if err == nil {
				err = a.add(img)
			}
			if err != nil {
				return a, err
			}
		}
		if len(a.Architectures) > 0 {
			return a, nil
		}
	}
	return a, errors.New("no image in it")
}

func (a *About) add(img v1.Image) error {
	config, err := img.ConfigFile()
	if err != nil {
		return err
	}
	version := config.Config.Labels[VersionLabel]
	switch {
	case len(config.Config.Entrypoint) != 1 || config.Config.Entrypoint[0] != "/upgrader" || !versionSyntax.MatchString(version):
		return &oci.Error{
			Err:  fmt.Errorf("not an image of the upgrader: it runs %q, and its label %s is %q", config.Config.Entrypoint, VersionLabel, version),
			Hint: "make one with `upgrader bundle image`",
		}
	case a.Kubernetes != "" && a.Kubernetes != version:
		return fmt.Errorf("it brings Kubernetes %s for %s and %s for %s", a.Kubernetes, a.Architectures[0], version, config.Architecture)
	}
	a.Kubernetes = version
	a.Architectures = append(a.Architectures, config.Architecture)
	a.Bundles[config.Architecture] = config.Config.Labels[DigestLabel]
	return nil
}
