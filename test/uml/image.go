package uml

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/node-upgrader/node-upgrader/test/cache"
	"github.com/node-upgrader/node-upgrader/test/debian"
	"github.com/node-upgrader/node-upgrader/test/host"
)

// imageVersion is part of an image's key: raise it when what is done to the
// same files changes.
const imageVersion = "1"

// diskSize is what a guest sees; the image's file has holes.
const diskSize = 16 << 30

const modules = "/usr/lib/uml/modules"

//go:embed files agent link
var sources embed.FS //nolint:gochecknoglobals // that is how embedding works

// Image returns a disk image: Debian as package host has it, the kernel's
// modules, the agent, and the layers, directories that are laid over it with the
// top one first. It is made once, and never changed.
func Image(ctx context.Context, progress io.Writer, layers ...string) (string, error) {
	if err := debian.Install(ctx, progress, "user-mode-linux", "e2fsprogs"); err != nil {
		return "", err
	}
	base, err := host.Base(ctx, progress)
	if err != nil {
		return "", err
	}
	release, err := release()
	if err != nil {
		return "", err
	}
	key := append([]string{imageVersion, host.BaseKey(), release, sourceText()}, layers...)
	dir, err := cache.DirContext(ctx, "uml-image", strings.Join(key, "\n"), func(tmp string) error {
		start := time.Now()
		if err := makeImage(ctx, tmp, base, release, layers); err != nil {
			return err
		}
		fmt.Fprintf(progress, "disk image for User-Mode Linux made in %.0f s\n", time.Since(start).Seconds())
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("make disk image: %w", err)
	}
	return filepath.Join(dir, "disk.img"), nil
}

// release is the kernel's, as its modules' directory is called.
func release() (string, error) {
	found, err := filepath.Glob(modules + "/*")
	if err != nil || len(found) != 1 {
		return "", fmt.Errorf("%d kernels in %s: %w", len(found), modules, errors.Join(err, fs.ErrNotExist))
	}
	return filepath.Base(found[0]), nil
}

// sourceText is all embedded text but tests.
func sourceText() string {
	var text strings.Builder
	_ = fs.WalkDir(sources, ".", func(name string, d fs.DirEntry, _ error) error {
		if !d.IsDir() && !strings.HasSuffix(name, "_test.go") {
			data, _ := sources.ReadFile(name)
			fmt.Fprintf(&text, "%s\n%s\n", name, data)
		}
		return nil
	})
	return text.String()
}

func makeImage(ctx context.Context, tmp, base, release string, layers []string) error {
	root := filepath.Join(tmp, "root")
	// Hard links: what is changed below is removed first.
	if _, err := run(ctx, "", "cp", "-al", base, root); err != nil {
		return err
	}
	for i := len(layers) - 1; i >= 0; i-- {
		if _, err := run(ctx, "", "cp", "-al", "--remove-destination", layers[i]+"/.", root); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Join(root, "lib/modules"), 0o755); err != nil {
		return err
	}
	if _, err := run(ctx, "", "cp", "-a", filepath.Join(modules, release), filepath.Join(root, "lib/modules")); err != nil {
		return err
	}
	if err := guestFiles(ctx, root); err != nil {
		return err
	}
	image := filepath.Join(tmp, "disk.img")
	if err := os.WriteFile(image, nil, 0o644); err != nil {
		return err
	}
	if err := os.Truncate(image, diskSize); err != nil {
		return err
	}
	if _, err := run(ctx, "", "mkfs.ext4", "-q", "-F", "-m", "0", "-E", "lazy_itable_init=1,nodiscard", "-d", root, image); err != nil {
		return err
	}
	return os.RemoveAll(root)
}

// maskedUnits would make a boot longer, and do nothing that a guest needs.
func maskedUnits() []string {
	return strings.Fields(`systemd-sysusers.service modprobe@.service
		kmod-static-nodes.service systemd-journal-flush.service
		systemd-update-utmp.service systemd-update-utmp-runlevel.service
		systemd-repart.service systemd-pstore.service`)
}

// guestFiles adds the agent and its units, and what differs from a host made of
// namespaces.
func guestFiles(ctx context.Context, root string) error {
	agent := filepath.Join(root, "usr/local/lib/guest/agent")
	if err := os.MkdirAll(filepath.Dir(agent), 0o755); err != nil {
		return err
	}
	mod, err := run(ctx, "", "go", "env", "GOMOD")
	if err != nil {
		return err
	}
	checkout := filepath.Dir(strings.TrimSpace(mod))
	if _, err := run(ctx, checkout, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", agent, "./test/uml/agent"); err != nil {
		return err
	}
	units := "etc/systemd/system/"
	for name, to := range map[string]string{
		"setup.sh":            "usr/local/lib/guest/setup.sh",
		"guest-setup.service": units + "guest-setup.service",
		"guest-agent.service": units + "guest-agent.service",
		"journald.conf":       "etc/systemd/journald.conf.d/throwaway.conf",
	} {
		text, err := sources.ReadFile("files/" + name)
		if err != nil {
			return err
		}
		mode := fs.FileMode(0o644)
		if name == "setup.sh" {
			mode = 0o755
		}
		if err := write(filepath.Join(root, to), string(text), mode); err != nil {
			return err
		}
	}
	// With an empty one systemd takes the boot for the machine's first.
	if err := write(filepath.Join(root, "etc/machine-id"), strings.Repeat("0123456789abcdef", 2)+"\n", 0o444); err != nil {
		return err
	}
	links := map[string]string{
		units + "sysinit.target.wants/guest-setup.service": "../guest-setup.service",
		units + "sysinit.target.wants/guest-agent.service": "../guest-agent.service",
		"etc/hostname":    "/run/guest/hostname",
		"etc/hosts":       "/run/guest/hosts",
		"etc/resolv.conf": "/run/guest/resolv.conf",
		// This kernel's nf_tables has no address translation.
		"etc/alternatives/iptables":          "/usr/sbin/iptables-legacy",
		"etc/alternatives/iptables-save":     "/usr/sbin/iptables-legacy-save",
		"etc/alternatives/iptables-restore":  "/usr/sbin/iptables-legacy-restore",
		"etc/alternatives/ip6tables":         "/usr/sbin/ip6tables-legacy",
		"etc/alternatives/ip6tables-save":    "/usr/sbin/ip6tables-legacy-save",
		"etc/alternatives/ip6tables-restore": "/usr/sbin/ip6tables-legacy-restore",
	}
	for _, unit := range maskedUnits() {
		links[units+unit] = "/dev/null"
	}
	for name, target := range links {
		name = filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.RemoveAll(name), os.Symlink(target, name)); err != nil {
			return err
		}
	}
	return nil
}

// write replaces a file: what is there may be another's hard link.
func write(name, text string, mode fs.FileMode) error {
	if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.WriteFile(name, []byte(text), mode)
}

func run(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return string(out), nil
}
