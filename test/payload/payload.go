// Package payload makes what is put onto throwaway nodes: the upgrader, a
// bundle and the image of both, from this very source and the cached
// components, by the program's own commands.
package payload

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/node-upgrader/node-upgrader/test/components"
	"github.com/node-upgrader/node-upgrader/test/host"
)

// Payload is what a node is upgraded with. All paths are on this machine.
type Payload struct {
	Target   components.Built
	Upgrader string // static binary
	Bundle   string // directory
	Digest   string // of the bundle
	Image    string // OCI archive
	Ref      string // the image's name
}

// Make builds the payload of a component set into dir, which has to exist.
func Make(ctx context.Context, set, dir string, progress io.Writer) (Payload, error) {
	s, err := components.Lookup(set)
	if err != nil {
		return Payload{}, err
	}
	p := Payload{
		Upgrader: filepath.Join(dir, "upgrader"), Bundle: filepath.Join(dir, "bundle-"+set),
		Image: filepath.Join(dir, "upgrader-"+set+".tar"), Ref: "node-upgrader.dev/upgrader:v" + s.Kubernetes,
	}
	if p.Target, err = components.Build(ctx, s, progress); err != nil {
		return p, err
	}
	start := time.Now()
	root, err := output(ctx, "", "go", "env", "GOMOD")
	if err != nil {
		return p, err
	}
	if _, err := output(ctx, filepath.Dir(root), "go", "build", "-trimpath", "-ldflags=-s -w", "-o", p.Upgrader, "./cmd/upgrader"); err != nil {
		return p, err
	}
	fmt.Fprintf(progress, "upgrader built (%.0f s)\n", time.Since(start).Seconds())
	start = time.Now()
	if p.Digest, err = output(ctx, "", p.Upgrader, "bundle", "build", "--from", filepath.Dir(p.Target.Bin), "--out", p.Bundle); err != nil {
		return p, err
	}
	if err := p.Pack(ctx, p.Ref, p.Image); err != nil {
		return p, err
	}
	fmt.Fprintf(progress, "bundle and image of Kubernetes %s built (%.0f s)\n", s.Kubernetes, time.Since(start).Seconds())
	return p, nil
}

// WithImages is the same with the variant of the bundle that brings the control
// plane's images, made in dir from the set's archives.
func (p Payload) WithImages(ctx context.Context, dir string) (Payload, error) {
	p.Bundle, p.Image, p.Ref = filepath.Join(dir, "bundle-images-"+p.Target.Set.Name), "", ""
	var err error
	p.Digest, err = output(ctx, "", p.Upgrader, "bundle", "build", "--from", filepath.Dir(p.Target.Bin), "--out", p.Bundle,
		"--images", "--images-from", p.Target.Images)
	return p, err
}

// Pack writes the image of the upgrader and the bundle, which gets this name, to
// a file.
func (p *Payload) Pack(ctx context.Context, ref, file string) error {
	p.Ref, p.Image = ref, file
	_, err := output(ctx, "", p.Upgrader, "bundle", "image", "--bundle", p.Bundle, "--upgrader", p.Upgrader, "--ref", ref,
		"--compression", "none", "--out", file) // it is read once, on this machine
	return err
}

func output(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, stderr.String())
	}
	return strings.TrimSpace(string(out)), nil
}

// ImportImages puts the target's control-plane images into a node's containerd,
// as an administrator without a registry does before an upgrade.
func (p Payload) ImportImages(ctx context.Context, m host.Machine) error {
	archives, err := filepath.Glob(filepath.Join(p.Target.Images, "*.tar"))
	if err != nil {
		return err
	}
	return importAll(ctx, m, archives)
}

// ImportSelf puts the upgrader's own image into a node's containerd.
func (p Payload) ImportSelf(ctx context.Context, m host.Machine) error {
	return importAll(ctx, m, []string{p.Image})
}

func importAll(ctx context.Context, m host.Machine, archives []string) error {
	slices.Sort(archives)
	for _, archive := range archives {
		const there = "/var/tmp/image.tar"
		if err := m.CopyIn(archive, there); err != nil {
			return err
		}
		if _, err := m.Exec(ctx, host.Command("ctr", "-n", "k8s.io", "images", "import", there)); err != nil {
			return err
		}
		if _, err := m.Exec(ctx, host.Command("rm", there)); err != nil {
			return err
		}
	}
	return nil
}

// By hand: where CopyTo puts the upgrader and its bundle on a node.
const (
	NodeUpgrader = "/root/upgrade/upgrader"
	NodeBundle   = "/root/upgrade/bundle"
)

// CopyTo carries the upgrader and the bundle to a node, as on a USB stick.
func (p Payload) CopyTo(m host.Machine) error { return p.copyTo(m, NodeUpgrader, NodeBundle) }

// CopyBesides is CopyTo for a second payload: the upgrader's path on the node.
func (p Payload) CopyBesides(m host.Machine, dir string) (upgrader string, err error) {
	upgrader = filepath.Join(dir, "upgrader")
	return upgrader, p.copyTo(m, upgrader, filepath.Join(dir, "bundle"))
}

func (p Payload) copyTo(m host.Machine, upgrader, bundle string) error {
	if err := m.CopyIn(p.Upgrader, upgrader); err != nil {
		return err
	}
	return m.CopyIn(p.Bundle, bundle)
}
