package components

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/node-upgrader/node-upgrader/test/debian"
)

// iptablesVariant is the program that kube-proxy runs under iptables' names: see
// iptables/main.go.
const iptablesVariant = "iptables-variant"

// proxyRoot is the root file system of kube-proxy's image without kube-proxy:
// iptables (nft and legacy), nft, conntrack and what they need, from Debian's
// packages.
func proxyRoot() part {
	return part{
		name: "kube-proxy's root", version: "Debian",
		key:   "iptables nftables conntrack 2",
		build: buildProxyRoot,
	}
}

func buildProxyRoot(ctx context.Context, dir string) error {
	debs, err := debian.FetchClosure(ctx, dir, "iptables", "nftables", "conntrack")
	if err != nil {
		return err
	}
	root := filepath.Join(dir, "root")
	if err := debian.Unpack(ctx, root, debs...); err != nil {
		return err
	}
	// In place of what the package's script makes with update-alternatives.
	for _, name := range []string{"iptables", "iptables-save", "iptables-restore", "ip6tables", "ip6tables-save", "ip6tables-restore"} {
		if err := os.Symlink(iptablesVariant, filepath.Join(root, "usr/sbin", name)); err != nil {
			return err
		}
	}
	trim, err := filepath.Glob(filepath.Join(root, "usr/lib/*/gconv"))
	if err != nil {
		return err
	}
	for _, name := range []string{"usr/share", "usr/lib/systemd", "etc/init.d", "var"} {
		trim = append(trim, filepath.Join(root, name))
	}
	for _, path := range append(trim, filepath.Dir(debs[0])) {
		if err := os.RemoveAll(path); err != nil {
			return err
		}
	}
	if os.Geteuid() != 0 {
		return nil // cannot be tried
	}
	for _, argv := range [][]string{{"/usr/sbin/iptables-nft", "--version"}, {"/usr/sbin/ip6tables-legacy-restore", "--version"}, {"/usr/sbin/nft", "--version"}, {"/usr/sbin/conntrack", "--version"}} {
		cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("try %s in its root: %w: %s", strings.Join(argv, " "), err, tail(string(out)))
		}
	}
	return nil
}
