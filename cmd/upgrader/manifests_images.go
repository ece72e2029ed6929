package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/node-upgrader/node-upgrader/image"
	"github.com/node-upgrader/node-upgrader/image/oci"
	"github.com/node-upgrader/node-upgrader/manifests"
	"github.com/node-upgrader/node-upgrader/steps"
)

func newManifestsImages() *cobra.Command {
	var o manifests.ImagesOptions
	var registry registryFlags
	var repository string
	cmd := &cobra.Command{
		Use: "images IMAGE…", Short: "Print a ConfigMap with the image for each version of Kubernetes, by digest",
		Long: `Print a ConfigMap for orchestrators: for each version of Kubernetes the image that
brings it, always by digest. An IMAGE is one in a registry, or an archive or a
layout (oci:DIR), of which every image is taken. --repository is where nodes pull
them from, where that is not the name they have.`,
		Example: `  upgrader manifests images registry.local/upgrader:v1.35.4 registry.local/upgrader:v1.36.3
  upgrader manifests images --repository registry.local/upgrader ./upgrader.tar`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			registries, err := registry.open()
			if err != nil {
				return err
			}
			if repository != "" && oci.RepositoryOf(repository) != repository {
				return &steps.UsageError{Reason: fmt.Sprintf("--repository %q: want registry/repository, without a tag", repository)}
			}
			for _, arg := range args {
				found, err := upgraderImages(cmd.Context(), registries, arg, repository)
				if err != nil {
					return err
				}
				o.Images = append(o.Images, found...)
			}
			object, err := manifests.Images(o)
			return printManifests(cmd, err, object)
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&repository, "repository", "", "registry/repository that nodes pull the images from")
	fs.StringVar(&o.Namespace, "namespace", manifests.DefaultNamespace, "namespace of the ConfigMap")
	fs.StringVar(&o.Name, "name", manifests.DefaultImagesName, "name of the ConfigMap")
	registry.bind(fs)
	return cmd
}

// upgraderImages are the images at a place.
func upgraderImages(ctx context.Context, registries *oci.Registries, arg, repository string) (found []manifests.UpgraderImage, err error) {
	place, err := oci.ParsePlace(arg)
	if err != nil {
		return nil, asUsage(err)
	}
	list, done, err := registries.Images(ctx, place)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, done()) }()
	for _, a := range list {
		about, err := image.Describe(a.Manifest)
		if err != nil {
			return nil, fmt.Errorf("image %s: %w", arg, err)
		}
		digest, err := a.Manifest.Digest()
		if err != nil {
			return nil, err
		}
		from := repository
		if from == "" && place.Path == "" {
			from = place.Repository.Name()
		}
		if from == "" {
			from = oci.RepositoryOf(a.Name)
		}
		if from == "" {
			return nil, &steps.UsageError{Reason: fmt.Sprintf("%s does not say which repository its image is from: give --repository", arg)}
		}
		found = append(found, manifests.UpgraderImage{
			Kubernetes: about.Kubernetes, Reference: from + "@" + digest.String(), Architectures: about.Architectures,
		})
	}
	return found, nil
}
