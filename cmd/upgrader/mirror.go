package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/node-upgrader/node-upgrader/image/oci"
	"github.com/node-upgrader/node-upgrader/steps"
)

// registryFlags say how registries are spoken to.
type registryFlags oci.RegistryOptions

func (f *registryFlags) bind(fs *pflag.FlagSet) {
	fs.StringVar(&f.CAFile, "registry-ca", "", "file with the registry's certificate authority, besides the system's")
	fs.BoolVar(&f.PlainHTTP, "plain-http", false, "let passwords and images go over the network in the clear; on this machine's own address that is allowed anyway")
}

func (f registryFlags) options() oci.RegistryOptions {
	f.UserAgent = "node-upgrader/" + ownVersion()
	return oci.RegistryOptions(f)
}

func (f registryFlags) open() (*oci.Registries, error) {
	return oci.NewRegistries(f.options())
}

func newMirror() *cobra.Command {
	var registry registryFlags
	var tag string
	cmd := &cobra.Command{
		Use: "mirror SOURCE DEST", GroupID: "make", Short: "Copy an image with its signature and SBOM, to a registry or into a file",
		Long: `Copy an image, for every architecture, with what is attached to it: signatures,
SBOMs, attestations. The digest stays the same; it is compared after the copy and
printed as REPOSITORY@DIGEST.

SOURCE and DEST are each one of

  registry.example/upgrader:v1.36.3   in a registry; @sha256:… works as well
  ./upgrader.tar                      an OCI archive
  oci:DIR                             an OCI layout

What is there already is not sent again: the same command after an interruption
goes on. Other images in a layout or an archive stay. Passwords come from the
usual Docker configuration: docker login, podman login, skopeo login.`,
		Example: `  upgrader mirror registry.example/upgrader:v1.36.3 ./upgrader.tar
  upgrader mirror ./upgrader.tar registry.local/upgrader --registry-ca ca.crt`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			o := oci.MirrorOptions{Tag: tag}
			var err error
			if o.Source, err = oci.ParsePlace(args[0]); err != nil {
				return asUsage(err)
			}
			if o.Dest, err = oci.ParsePlace(args[1]); err != nil {
				return asUsage(err)
			}
			if tag != "" && o.Source.Path == "" {
				return &steps.UsageError{Reason: "--tag is for an archive or a layout: give the registry's tag in SOURCE"}
			}
			if o.Registries, err = registry.open(); err != nil {
				return err
			}
			return copyImage(cmd.Context(), cmd, o)
		},
	}
	registry.bind(cmd.Flags())
	cmd.Flags().StringVar(&tag, "tag", "", "which image of an archive or a layout that holds several")
	return cmd
}

func copyImage(ctx context.Context, cmd *cobra.Command, o oci.MirrorOptions) error {
	m, err := oci.Mirror(ctx, o)
	if err != nil {
		return err
	}
	for _, a := range m.Attached {
		if _, err := fmt.Fprintf(cmd.ErrOrStderr(), "with %s\n", a); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintln(cmd.OutOrStdout(), m.Image)
	return err
}

// asUsage is an argument that makes no sense, with its hint.
func asUsage(err error) error {
	usage := error(&steps.UsageError{Reason: err.Error()})
	for _, hint := range steps.Hints(err) {
		usage = &steps.HintError{Err: usage, Hint: hint}
	}
	return usage
}
