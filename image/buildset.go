package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// Architectures are all that a bundle may be for, as GOARCH spells them.
func Architectures() []string { return []string{"amd64", "arm64", "ppc64le", "riscv64", "s390x"} }

// BuildAll makes one bundle, which is out itself, or a set of them.
func BuildAll(ctx context.Context, out string, each []BuildOptions) ([]*Bundle, error) {
	if len(each) != 1 {
		return BuildSet(ctx, out, each)
	}
	each[0].Out = out
	b, err := Build(ctx, each[0])
	if err != nil {
		return nil, err
	}
	return []*Bundle{b}, nil
}

// BuildSet makes bundles for several architectures, each in a directory of its
// name in out. Their own Out is not used. out is complete or as it was before.
func BuildSet(ctx context.Context, out string, each []BuildOptions) ([]*Bundle, error) {
	bundles, err := buildSet(ctx, out, each)
	if err != nil {
		return nil, fmt.Errorf("build bundles: %w", err)
	}
	return bundles, nil
}

func buildSet(ctx context.Context, out string, each []BuildOptions) (bundles []*Bundle, err error) {
	replaces, err := mayWrite(out)
	if err != nil {
		return nil, err
	}
	final, err := filepath.Abs(out)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(final), 0o755); err != nil {
		return nil, err
	}
	tmp, err := os.MkdirTemp(filepath.Dir(final), ".bundle-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	next := filepath.Join(tmp, "new")
	if err := os.Mkdir(next, 0o755); err != nil {
		return nil, err
	}
	bundles = make([]*Bundle, len(each))
	var asked []wanted // the images, as this machine's own kubeadm says
	for _, i := range nativeFirst(each) {
		o := each[i]
		if !slices.Contains(Architectures(), o.Architecture) {
			return nil, fmt.Errorf("architecture %q is not known", o.Architecture)
		}
		if o.Images != nil {
			images := *o.Images
			images.asked = &asked
			o.Images = &images
		}
		o.Out = filepath.Join(next, o.Architecture)
		b, err := build(ctx, o)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", o.Architecture, err)
		}
		bundles[i] = b
	}
	for i, b := range bundles {
		b.Dir = filepath.Join(out, each[i].Architecture)
	}
	if err := timeless(next); err != nil {
		return nil, err
	}
	return bundles, moveIn(next, final, replaces)
}

// nativeFirst are the indices of each, that of this machine's architecture first:
// its programs can be asked.
func nativeFirst(each []BuildOptions) []int {
	order := make([]int, 0, len(each))
	for i, o := range each {
		if foreign(o.Architecture) {
			order = append(order, i)
		} else {
			order = slices.Insert(order, 0, i)
		}
	}
	return order
}

// checkSet checks that a directory has nothing but bundles in it, each under its
// architecture's name.
func checkSet(dir string, entries []os.DirEntry) error {
	for _, e := range entries {
		arch := e.Name()
		if !slices.Contains(Architectures(), arch) {
			return fmt.Errorf("%s is no architecture", printable(arch))
		}
		if _, err := open(filepath.Join(dir, arch), arch); err != nil {
			return err
		}
	}
	return nil
}
