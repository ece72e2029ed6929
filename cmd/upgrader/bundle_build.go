package main

import (
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/node-upgrader/node-upgrader/image"
	"github.com/node-upgrader/node-upgrader/image/upstream"
	"github.com/node-upgrader/node-upgrader/steps"
)

// buildFlags are those of `bundle build`.
type buildFlags struct {
	from, out     string
	architectures []string
	versions      []string // component=version
	with          []string // file=path
	images        imageFlags

	kubernetes, containerd, runc, cniPlugins string
	mirror, lock, cache                      string
	updateLock                               bool
}

func newBundleBuild() *cobra.Command {
	f := &buildFlags{}
	cmd := &cobra.Command{
		Use: "build {--from DIR | --kubernetes VERSION} --out DIR", Short: "Make a bundle from a directory, or from the projects' releases",
		Long: `Make a bundle from a directory of components:

  DIR/bin/{containerd,containerd-shim-runc-v2,ctr,runc,kubeadm,kubelet,kubectl}
  DIR/cni/{bridge,host-local,loopback,portmap,…}

or, without --from, from what Kubernetes, containerd, runc and the CNI plugins
release. bundle.lock pins each artifact by its sha256: --update-lock writes it.
The versions that are not given are the lock's.

  upgrader bundle build --kubernetes v1.36.3 --containerd v2.3.7 --runc v1.4.3 \
      --cni-plugins v1.9.1 --update-lock --out bundle
  upgrader bundle build --out bundle

Versions are asked from the binaries themselves; a set of them that does not fit
together is refused. The same input gives the same digest. Several architectures
make a bundle each, in a directory of its name. Nothing is left in --out when the
build fails.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			bundles, err := f.build(cmd)
			if err != nil {
				return err
			}
			return printBuilt(cmd.OutOrStdout(), bundles)
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&f.from, "from", "", "directory with the components; for several architectures, with a directory for each")
	fs.StringVar(&f.out, "out", "", "directory to make; one that holds a bundle is replaced")
	fs.StringSliceVar(&f.architectures, "arch", []string{runtime.GOARCH}, "architectures, with commas between")
	fs.StringArrayVar(&f.versions, "version", nil, "component=version, where a binary cannot be asked")
	fs.StringArrayVar(&f.with, "with", nil, "file=path: take this file in the place of another, such as kubelet=PATH")
	fs.StringVar(&f.kubernetes, "kubernetes", "", "version of kubeadm, kubelet and kubectl")
	fs.StringVar(&f.containerd, "containerd", "", "version of containerd")
	fs.StringVar(&f.runc, "runc", "", "version of runc")
	fs.StringVar(&f.cniPlugins, "cni-plugins", "", "version of the CNI project's plugins")
	fs.StringVar(&f.mirror, "mirror", "", "base URL below which the projects' files are, as URL/dl.k8s.io/release/…")
	fs.StringVar(&f.lock, "lock", "bundle.lock", "file that pins each artifact by its sha256")
	fs.BoolVar(&f.updateLock, "update-lock", false, "write the lock anew, from the checksums that the projects publish")
	fs.StringVar(&f.cache, "cache", "", "directory of what was downloaded; by default node-upgrader/downloads in the user's cache")
	f.images.bind(fs)
	return cmd
}

// build checks the flags and makes what they ask for.
func (f *buildFlags) build(cmd *cobra.Command) ([]*image.Bundle, error) {
	if err := f.validate(cmd.Flags().Changed); err != nil {
		return nil, err
	}
	versions, err := parseVersions(f.versions)
	if err != nil {
		return nil, err
	}
	replace, err := parseReplaced(f.with)
	if err != nil {
		return nil, err
	}
	images, err := f.images.validate()
	if err != nil {
		return nil, err
	}
	screen := newLogger(cmd.ErrOrStderr(), "text")
	defer screen.close()
	log := slog.New(screen)
	o := image.BuildOptions{Versions: versions, Replace: replace, Images: images, Progress: progress(log, "bundle")}
	var bundles []*image.Bundle
	if f.from != "" {
		bundles, err = image.BuildAll(cmd.Context(), f.out, f.local(o))
	} else {
		bundles, err = f.upstream(cmd.Context(), o, log)
	}
	if err != nil {
		return nil, err
	}
	for _, b := range bundles {
		tellReplaced(log, b, replace)
	}
	return bundles, nil
}

// local are the builds from directories.
func (f *buildFlags) local(o image.BuildOptions) []image.BuildOptions {
	o.KubernetesVersion, o.Expect = f.kubernetes, f.asked()
	each := make([]image.BuildOptions, len(f.architectures))
	for i, arch := range f.architectures {
		each[i] = o
		each[i].From, each[i].Architecture = f.from, arch
		if len(each) > 1 {
			each[i].From = filepath.Join(f.from, arch)
		}
	}
	return each
}

// asked are the versions that were given, by component.
func (f *buildFlags) asked() map[string]string {
	versions := map[string]string{}
	for _, component := range upstream.Components() {
		if v := f.flagOf(component).value; v != "" {
			versions[component] = v
		}
	}
	return versions
}

type versionFlag struct{ name, value string }

// flagOf is the flag that gives a component's version.
func (f *buildFlags) flagOf(component string) versionFlag {
	switch component {
	case image.Containerd:
		return versionFlag{"--containerd", f.containerd}
	case image.Runc:
		return versionFlag{"--runc", f.runc}
	case image.CNIPlugins:
		return versionFlag{"--cni-plugins", f.cniPlugins}
	default:
		return versionFlag{"--kubernetes", f.kubernetes}
	}
}

// tellReplaced says what of a bundle is not what its components' projects or the
// directory have: the manifest does not.
func tellReplaced(log *slog.Logger, b *image.Bundle, replace map[string]string) {
	for _, file := range b.Manifest.Files {
		if path, ok := replace[file.Name()]; ok && file.Component != image.Images {
			log.Info("took another file", "name", file.Name(), "path", path, "version", b.Version(file.Component), "sha256", file.SHA256)
		}
	}
}

// printBuilt writes the digest, or one a line after its architecture.
func printBuilt(w io.Writer, bundles []*image.Bundle) error {
	for _, b := range bundles {
		arch := ""
		if len(bundles) > 1 {
			arch = b.Manifest.Architecture + " "
		}
		if _, err := fmt.Fprintf(w, "%s%s\n", arch, b.Digest); err != nil {
			return err
		}
	}
	return nil
}

// progress draws a bar of its own name, on a terminal.
func progress(log *slog.Logger, name string) func(done, total int64) {
	return func(done, total int64) { log.Debug("progress", "step", name, "done", done, "total", total) }
}

func usage(format string, args ...any) error {
	return &steps.UsageError{Reason: fmt.Sprintf(format, args...)}
}
