package main

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/node-upgrader/node-upgrader/image"
	"github.com/node-upgrader/node-upgrader/steps"
)

func newBundle() *cobra.Command {
	cmd := &cobra.Command{
		Use: "bundle", GroupID: "make", Short: "Build, sign, inspect and verify a bundle: what is installed on nodes",
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newBundleBuild(), newBundleVerify(), newBundleSign(), newBundleKeygen(), newBundleSBOM(), newBundleInspect(), newBundleImage())
	return cmd
}

func newBundleInspect() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use: "inspect DIR", Short: "Show what a bundle holds", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if output != "text" && output != "json" && output != "images" {
				return &steps.UsageError{Reason: fmt.Sprintf("--output %q: want text, json or images", output)}
			}
			b, err := image.OpenAny(args[0])
			if err != nil {
				return err
			}
			if output == "images" {
				return printImages(cmd.Context(), cmd.OutOrStdout(), b)
			}
			return printBundle(cmd.OutOrStdout(), output, b)
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text, json, or images: the names of the images in it")
	return cmd
}

func printBundle(w io.Writer, output string, b *image.Bundle) error {
	if output == "json" {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(struct {
			Digest string `json:"digest"`
			image.Manifest
		}{b.Digest, b.Manifest})
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "digest\t%s\nKubernetes\t%s\narchitecture\t%s\n", b.Digest, b.Manifest.KubernetesVersion, b.Manifest.Architecture)
	for _, c := range b.Manifest.Components {
		fmt.Fprintf(t, "%s\t%s\n", c.Name, c.Version)
	}
	fmt.Fprintln(t)
	for _, f := range b.Manifest.Files {
		fmt.Fprintf(t, "%s\t%.1f MiB\t%s\t%s\n", f.Path, float64(f.Size)/(1<<20), f.SHA256[:12], f.Place)
	}
	return t.Flush()
}
