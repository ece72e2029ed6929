package main

import (
	"fmt"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is set at link time: -X main.version=v1.2.3.
var version = "" //nolint:gochecknoglobals // the linker needs one

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the upgrader's version",
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), ownVersion())
			return err
		},
	}
}

// ownVersion is the release, or what the Go module system knows of the build.
func ownVersion() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}
