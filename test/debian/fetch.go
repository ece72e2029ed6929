package debian

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Fetch downloads the packages, without their dependencies, into a temporary
// directory of dir and returns the files' paths. Nothing is installed; no root
// is needed unless the package lists are missing.
func Fetch(ctx context.Context, dir string, pkgs ...string) ([]string, error) {
	return fetch(ctx, dir, func(debs string) error {
		return run(ctx, debs, append(aptHere(debs), append([]string{"download"}, pkgs...)...)...)
	})
}

// FetchClosure is Fetch with everything the packages depend on, as apt resolves
// it for a machine on which nothing is installed.
func FetchClosure(ctx context.Context, dir string, pkgs ...string) ([]string, error) {
	return fetch(ctx, dir, func(debs string) error {
		status := filepath.Join(debs, "status") // of a machine with nothing on it
		if err := os.WriteFile(status, nil, 0o644); err != nil {
			return err
		}
		args := append(aptHere(debs), "-o", "Dir::State::status="+status,
			"install", "-y", "--no-install-recommends", "--download-only")
		return run(ctx, debs, append(args, pkgs...)...)
	})
}

// aptHere is apt-get with its download directory in debs and without the locks
// of this machine's dpkg, which it leaves alone.
func aptHere(debs string) []string {
	return []string{
		"apt-get", "-q",
		"-o", "Debug::NoLocking=true",
		"-o", "Dir::Cache::archives=" + debs,
		"-o", "APT::Sandbox::User=root", // the user _apt cannot write to debs
	}
}

func fetch(ctx context.Context, dir string, get func(debs string) error) ([]string, error) {
	debs, err := os.MkdirTemp(dir, "debs-")
	if err != nil {
		return nil, fmt.Errorf("fetch Debian packages: %w", err)
	}
	if err := os.Mkdir(filepath.Join(debs, "partial"), 0o755); err != nil {
		return nil, fmt.Errorf("fetch Debian packages: %w", err)
	}
	if err := withLists(ctx, func() error { return get(debs) }); err != nil {
		return nil, fmt.Errorf("fetch Debian packages: %w", err)
	}
	found, err := filepath.Glob(filepath.Join(debs, "*.deb"))
	if err != nil {
		return nil, fmt.Errorf("fetch Debian packages: %w", err)
	}
	return found, nil
}

// Unpack unpacks packages' files into root, in the layout of a Debian with a
// merged /usr: bin, sbin, lib and lib64 are links into usr. No maintainer script
// runs, so what update-alternatives or ldconfig would make is not there.
func Unpack(ctx context.Context, root string, debs ...string) error {
	for _, deb := range debs {
		if err := run(ctx, "", "dpkg-deb", "-x", deb, root); err != nil {
			return fmt.Errorf("unpack a Debian package: %w", err)
		}
	}
	for _, name := range []string{"bin", "sbin", "lib", "lib64"} {
		if err := mergeUsr(ctx, root, name); err != nil {
			return fmt.Errorf("unpack a Debian package: %w", err)
		}
	}
	return nil
}

func mergeUsr(ctx context.Context, root, name string) error {
	dir := filepath.Join(root, name)
	info, err := os.Lstat(dir)
	switch {
	case err == nil && info.Mode()&os.ModeSymlink != 0:
		return nil
	case err == nil:
		merged := filepath.Join(root, "usr", name)
		if err := os.MkdirAll(merged, 0o755); err != nil {
			return err
		}
		if err := run(ctx, "", "cp", "-a", dir+"/.", merged); err != nil {
			return err
		}
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	case !os.IsNotExist(err):
		return err
	}
	if _, err := os.Stat(filepath.Join(root, "usr", name)); err != nil {
		return nil // neither is there: nothing to link
	}
	return os.Symlink("usr/"+name, dir)
}

// Version is the version of a package file, as 1.1.5+ds1-1+deb12u1.
func Version(ctx context.Context, deb string) (string, error) {
	out, err := output(ctx, "", "dpkg-deb", "-f", deb, "Version")
	if err != nil {
		return "", fmt.Errorf("read a Debian package: %w", err)
	}
	return strings.TrimSpace(out), nil
}
