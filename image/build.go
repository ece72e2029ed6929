package image

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// BuildOptions say what a bundle is built from.
type BuildOptions struct {
	// From is a directory with bin/ (containerd, containerd-shim-runc-v2, ctr,
	// runc, kubeadm, kubelet, kubectl) and cni/ (plugins of the CNI project).
	// Links in it are followed. Other files in bin/ are not taken.
	From string
	// Out is the bundle's directory. It must not exist, be empty, or be a bundle
	// or a set of bundles, which is replaced.
	Out string
	// KubernetesVersion, if given, must be what kubeadm, kubelet and kubectl are.
	KubernetesVersion string
	Architecture      string            // as GOARCH spells it; "" is this machine's
	Versions          map[string]string // by component: not asked of the binaries
	// Expect says by component what binaries of this machine's architecture must
	// answer, and what those of another one are taken for. A component of which
	// a file is replaced is not held to it.
	Expect map[string]string
	// Replace has files by name, such as kubelet, that are taken in the place of
	// those in From.
	Replace map[string]string
	// Images are brought too; nil: a bundle without them.
	Images   *ContainerImageOptions
	Progress func(done, total int64)
}

// Build makes a bundle. The same files give the same digest. Out is complete or
// as it was before; what is built is not fsynced.
func Build(ctx context.Context, o BuildOptions) (*Bundle, error) {
	if o.Architecture == "" {
		o.Architecture = runtime.GOARCH
	}
	b, err := build(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("build bundle: %w", err)
	}
	return b, nil
}

func build(ctx context.Context, o BuildOptions) (*Bundle, error) {
	replaces, err := mayWrite(o.Out)
	if err != nil {
		return nil, err
	}
	found, err := survey(o.From, o.Replace)
	if err != nil {
		return nil, err
	}
	if err := checkBinaries(o.Architecture, found); err != nil {
		return nil, err
	}
	all, err := versions(ctx, o, found)
	if err != nil {
		return nil, err
	}
	kubernetes, err := agree(all, o.KubernetesVersion)
	if err != nil {
		return nil, err
	}
	if err := CheckVersions(kubernetes, all[Containerd], all[Runc]); err != nil {
		return nil, err
	}
	m := Manifest{SchemaVersion: SchemaVersion, Architecture: o.Architecture, KubernetesVersion: kubernetes}
	for name, version := range all {
		m.Components = append(m.Components, Component{name, version})
	}
	slices.SortFunc(m.Components, func(a, b Component) int { return cmp.Compare(a.Name, b.Name) })
	return assemble(ctx, o, m, found, replaces)
}

// mayWrite tells whether out is a bundle or a set of bundles, which may be
// replaced; what is neither that nor empty is an error.
func mayWrite(out string) (replaces bool, err error) {
	entries, err := os.ReadDir(out)
	switch {
	case errors.Is(err, os.ErrNotExist), err == nil && len(entries) == 0:
		return false, nil
	case err != nil:
		return false, err
	}
	if _, known := machines(entries[0].Name()); known {
		err = checkSet(out, entries)
	} else {
		_, err = open(out, "")
	}
	if err != nil {
		return false, fmt.Errorf("%s is not empty and not a bundle that may be replaced: %w", out, err)
	}
	return true, nil
}

func checkBinaries(arch string, found []foundBinary) error {
	var problems []error
	for _, b := range found {
		f, err := os.Open(b.path)
		if err == nil {
			err = checkELF(f, arch)
			_ = f.Close()
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", b.path, err))
		}
	}
	return errors.Join(problems...)
}

// assemble writes the bundle beside its place and moves it there.
func assemble(ctx context.Context, o BuildOptions, m Manifest, found []foundBinary, replaces bool) (b *Bundle, err error) {
	out, err := filepath.Abs(o.Out)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return nil, err
	}
	tmp, err := os.MkdirTemp(filepath.Dir(out), ".bundle-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	next := filepath.Join(tmp, "new")
	if m.Files, err = copyBinaries(ctx, o, found, next); err != nil {
		return nil, err
	}
	if o.Images != nil {
		if err := addImages(ctx, *o.Images, next, &m); err != nil {
			return nil, err
		}
	}
	data, err := marshal(m, "  ")
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(next, ManifestName), data, 0o644); err != nil {
		return nil, err
	}
	if err := timeless(next); err != nil {
		return nil, err
	}
	if b, err = open(next, o.Architecture); err != nil {
		return nil, err
	}
	if _, err := b.Images(ctx); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := moveIn(next, out, replaces); err != nil {
		return nil, err
	}
	b.Dir = o.Out
	return b, nil
}

// moveIn gives next the place of out, in one instant; what was there is then at
// next.
func moveIn(next, out string, replaces bool) (err error) {
	if replaces {
		err = unix.Renameat2(unix.AT_FDCWD, next, unix.AT_FDCWD, out, unix.RENAME_EXCHANGE)
	} else {
		err = os.Rename(next, out)
	}
	if err != nil {
		return fmt.Errorf("move the bundle to %s: %w", out, err)
	}
	return nil
}

// copyBinaries copies all and returns their manifest entries, sorted by path.
func copyBinaries(ctx context.Context, o BuildOptions, found []foundBinary, dest string) ([]File, error) {
	files := make([]File, len(found))
	var total int64
	for i, b := range found {
		fi, err := os.Stat(b.path)
		if err != nil {
			return nil, err
		}
		files[i] = b.file()
		total += fi.Size()
	}
	count := newMeter(total, o.Progress)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(workers())
	for i, b := range found {
		g.Go(func() error {
			return files[i].fill(ctx, b.path, filepath.Join(dest, files[i].Path), count)
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	slices.SortFunc(files, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	return files, nil
}

// fill copies a file and learns its size and sha256.
func (f *File) fill(ctx context.Context, from, to string, count *meter) (err error) {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	dst, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dst.Close()) }()
	h := sha256.New()
	f.Size, err = io.CopyBuffer(io.MultiWriter(dst, h), &countingReader{ctx, src, count}, make([]byte, bufferSize))
	if err != nil {
		return err
	}
	f.SHA256 = hex.EncodeToString(h.Sum(nil))
	return dst.Chmod(os.FileMode(f.Mode))
}

// timeless sets all times to 1970, so that an image made by COPY is the same
// for the same bundle.
func timeless(dir string) error {
	epoch := time.Unix(0, 0)
	return filepath.WalkDir(dir, func(name string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			// Made under any umask, readable for whoever packs it.
			if err := os.Chmod(name, 0o755); err != nil {
				return err
			}
		}
		return os.Chtimes(name, epoch, epoch)
	})
}
