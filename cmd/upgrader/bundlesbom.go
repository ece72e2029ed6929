package main

import (
	"bytes"
	"errors"
	"os"

	"github.com/spf13/cobra"

	"github.com/node-upgrader/node-upgrader/image"
	"github.com/node-upgrader/node-upgrader/image/sbom"
	"github.com/node-upgrader/node-upgrader/steps"
)

func newBundleSBOM() *cobra.Command {
	var upgrader, check string
	cmd := &cobra.Command{
		Use: "sbom [--upgrader FILE] DIR", Short: "Say what is inside a bundle, as SPDX JSON", Args: cobra.ExactArgs(1),
		Long: `Print what is inside a bundle, and inside the image made of it, as an SPDX 2.3
document: every file with its checksums, every component, and every Go module that
is linked into a program, by the program's own build information. The same bytes
give the same document; its time is SOURCE_DATE_EPOCH, or 1970.

With --check FILE nothing is printed: the document in FILE has to be this one.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			created, err := sourceDate()
			if err != nil {
				return err
			}
			b, err := image.OpenAny(args[0])
			if err != nil {
				return err
			}
			data, err := sbom.Make(cmd.Context(), sbom.Options{Bundle: b, Upgrader: upgrader, Created: created})
			if err != nil {
				return err
			}
			if check != "" {
				return checkSBOM(check, data)
			}
			_, err = cmd.OutOrStdout().Write(data)
			return err
		},
	}
	cmd.Flags().StringVar(&upgrader, "upgrader", "", "the image's upgrader, which is described too")
	cmd.Flags().StringVar(&check, "check", "", "a document that has to be the same")
	return cmd
}

func checkSBOM(file string, want []byte) error {
	got, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if bytes.Equal(got, want) {
		return nil
	}
	have, err := sbom.Files(want)
	if err != nil {
		return err
	}
	err = sbom.Difference(got, have)
	if err == nil {
		err = errors.New(file + ": the files are right, what it says of them is not, or its time is another")
	}
	return &steps.HintError{Err: err, Hint: "make it anew: upgrader bundle sbom"}
}
