package manifests

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// ImagesLabel with the value "true" is on the ConfigMap with the upgrader's
// images: an orchestrator finds it by that.
const ImagesLabel = "node-upgrader.dev/images"

// ArchitecturesAnnotation with a version of Kubernetes after it has the
// architectures of that version's image, as amd64,arm64.
const ArchitecturesAnnotation = "node-upgrader.dev/architectures."

// DefaultImagesName is the ConfigMap's name.
const DefaultImagesName = "node-upgrader-images"

// UpgraderImage is an image of the upgrader.
type UpgraderImage struct {
	Kubernetes    string   // the version that it brings, as v1.36.3
	Reference     string   // repository@sha256:…
	Architectures []string // as GOARCH spells them
}

// ImagesOptions say which images there are.
type ImagesOptions struct {
	Images    []UpgraderImage
	Namespace string // --namespace; "": DefaultNamespace
	Name      string // --name; "": DefaultImagesName
}

// Images returns a ConfigMap that has, for each version of Kubernetes, the image
// that brings it: always by its digest, since a tag can be moved between two
// nodes of one cluster. The error has everything that is wrong, each an
// *OptionError.
func Images(o ImagesOptions) (*corev1.ConfigMap, error) {
	if o.Namespace == "" {
		o.Namespace = DefaultNamespace
	}
	if o.Name == "" {
		o.Name = DefaultImagesName
	}
	labels := appLabels()
	labels[ImagesLabel] = "true"
	m := &corev1.ConfigMap{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{
			Name: o.Name, Namespace: o.Namespace, Labels: labels, Annotations: map[string]string{},
		},
		Data: map[string]string{},
	}
	errs := []error{checkNamespace(o.Namespace), invalid("--name", o.Name, validation.IsDNS1123Subdomain(o.Name))}
	if len(o.Images) == 0 {
		errs = append(errs, &OptionError{"IMAGE", "no image is given"})
	}
	for _, i := range o.Images {
		errs = append(errs, i.check())
		if old, ok := m.Data[i.Kubernetes]; ok && old != i.Reference {
			errs = append(errs, &OptionError{"IMAGE", fmt.Sprintf("two images bring Kubernetes %s: %s and %s", i.Kubernetes, old, i.Reference)})
		}
		m.Data[i.Kubernetes] = i.Reference
		m.Annotations[ArchitecturesAnnotation+i.Kubernetes] = strings.Join(slices.Sorted(slices.Values(i.Architectures)), ",")
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return m, nil
}

func (i UpgraderImage) check() error {
	if _, err := name.NewDigest(i.Reference, name.StrictValidation); err != nil {
		return &OptionError{"IMAGE", fmt.Sprintf("%q is not repository@sha256:…: %v", i.Reference, err)}
	}
	if !strings.HasPrefix(i.Kubernetes, "v") {
		return &OptionError{"IMAGE", fmt.Sprintf("%s says that it brings Kubernetes %q, not a version like v1.36.3", i.Reference, i.Kubernetes)}
	}
	if len(i.Architectures) == 0 {
		return &OptionError{"IMAGE", i.Reference + " is for no architecture"}
	}
	return invalid("IMAGE", i.Kubernetes, append(validation.IsConfigMapKey(i.Kubernetes),
		validation.IsQualifiedName(ArchitecturesAnnotation+i.Kubernetes)...))
}
