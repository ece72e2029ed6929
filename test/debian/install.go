// Package debian gets what the proving ground needs from Debian's packages:
// onto this machine (Install), or unpacked into a directory without touching
// this machine (Fetch, FetchClosure, Unpack).
//
// It runs apt-get and dpkg, nothing else, and calls `apt-get update` only when a
// package cannot be had with the lists that are there.
package debian

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"
)

// Install makes sure that the packages are installed on this machine, without
// what they only recommend. It is instant when they are, and says in a line on
// progress what it does when they are not. It needs root then.
func Install(ctx context.Context, progress io.Writer, pkgs ...string) error {
	missing, err := Missing(ctx, pkgs...)
	if err != nil || len(missing) == 0 {
		return err
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("install Debian packages: not root; run: apt-get install --no-install-recommends %s", strings.Join(missing, " "))
	}
	start := time.Now()
	_, _ = fmt.Fprintf(progress, "installing Debian packages %s … ", strings.Join(missing, " "))
	args := append([]string{"apt-get", "install", "-y", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=300"}, missing...)
	if err := withLists(ctx, func() error { return run(ctx, "", args...) }); err != nil {
		_, _ = fmt.Fprintln(progress)
		return fmt.Errorf("install Debian packages: %w", err)
	}
	_, _ = fmt.Fprintf(progress, "%.0f s\n", time.Since(start).Seconds())
	return nil
}

// Missing returns those of the packages that are not installed, in their order.
func Missing(ctx context.Context, pkgs ...string) ([]string, error) {
	if len(pkgs) == 0 {
		return nil, nil
	}
	// dpkg-query fails when it does not know one of the names, and still
	// prints the others; that it cannot run at all is the only error here.
	cmd := exec.CommandContext(ctx, "dpkg-query", append([]string{"-W", "-f", "${Package} ${db:Status-Status}\n"}, pkgs...)...)
	out, err := cmd.Output()
	if err != nil && cmd.ProcessState == nil {
		return nil, fmt.Errorf("look up Debian packages: %w", err)
	}
	return missing(string(out), pkgs), nil
}

func missing(status string, pkgs []string) []string {
	installed := map[string]bool{}
	for line := range strings.Lines(status) {
		if name, ok := strings.CutSuffix(strings.TrimSpace(line), " installed"); ok {
			installed[name] = true
		}
	}
	var out []string
	for _, p := range pkgs {
		if !installed[p] {
			out = append(out, p)
		}
	}
	return out
}

// withLists calls f, and again after `apt-get update` if it failed: a fresh
// machine has no package lists, an old one has lists of what is gone.
func withLists(ctx context.Context, f func() error) error {
	first := f()
	if first == nil || ctx.Err() != nil {
		return first
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("%w (as root, apt-get update may help)", first)
	}
	if err := run(ctx, "", "apt-get", "update", "-q", "-o", "DPkg::Lock::Timeout=300"); err != nil {
		return fmt.Errorf("%w, after %w", err, first)
	}
	return f()
}

// run runs a command and returns its output in the error only.
func run(ctx context.Context, dir string, argv ...string) error {
	_, err := output(ctx, dir, argv...)
	return err
}

func output(ctx context.Context, dir string, argv ...string) (string, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C.UTF-8")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, tail(stderr.String()+stdout.String()))
	}
	return stdout.String(), nil
}

func tail(s string) string {
	const most = 2000
	s = strings.TrimSpace(s)
	if len(s) > most {
		s = "…" + s[len(s)-most:]
	}
	return s
}
