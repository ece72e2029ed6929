// Command build makes sets of components and prints where they are:
//
//	go run ./test/components/build 1.35 1.36
//
// Without an argument it makes all of them. Progress goes to standard error,
// the paths to standard output; with --print-dir first, only the directory that
// holds a set's bin and cni.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/node-upgrader/node-upgrader/test/components"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "build:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, names []string, out, progress io.Writer) error {
	onlyDir := len(names) > 0 && names[0] == "--print-dir"
	if onlyDir {
		names = names[1:]
	}
	sets := components.Sets()
	if len(names) > 0 {
		sets = nil
	}
	for _, name := range names {
		set, err := components.Lookup(name)
		if err != nil {
			return err
		}
		sets = append(sets, set)
	}
	for _, set := range sets {
		built, err := components.Build(ctx, set, progress)
		if err != nil {
			return err
		}
		if onlyDir {
			_, _ = fmt.Fprintln(out, filepath.Dir(built.Bin))
			continue
		}
		_, _ = fmt.Fprintf(out, "%s bin     %s\n%s cni     %s\n%s images  %s\n", set.Name, built.Bin, set.Name, built.CNI, set.Name, built.Images)
		for _, name := range built.ImageNames {
			_, _ = fmt.Fprintf(out, "%s image   %s\n", set.Name, name)
		}
	}
	if onlyDir {
		return nil
	}
	archive, ref, err := components.WorkloadImage(ctx, progress)
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintf(out, "workload    %s %s\n", ref, archive)
	return nil
}
