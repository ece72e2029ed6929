package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/node-upgrader/node-upgrader/test/cache"
	"github.com/node-upgrader/node-upgrader/test/debian"
)

// baseVersion is part of the base's key: raise it when what prepare does
// changes.
const baseVersion = "2"

const (
	baseSuite = "bookworm"
	// marker is the file that a root file system must have to be booted.
	marker     = "/etc/throwaway-host"
	markerText = "A throwaway host of node-upgrader's tests. Nothing here is worth keeping.\n"
)

// basePackages is what a kubeadm node needs of Debian. There is no runc: a node
// gets the one of its component set in /usr/local/sbin.
func basePackages() []string {
	return strings.Fields(`systemd systemd-sysv dbus iproute2 iptables nftables
		conntrack ethtool socat kmod procps curl ca-certificates util-linux
		mount e2fsprogs`)
}

// maskedUnits would touch the machine's hardware, clock, modules or kernel
// settings, or wait for what a container does not have.
func maskedUnits() []string {
	return strings.Fields(`systemd-udevd.service systemd-udevd-kernel.socket
		systemd-udevd-control.socket systemd-udev-trigger.service
		systemd-sysctl.service systemd-modules-load.service
		systemd-random-seed.service systemd-timesyncd.service
		systemd-resolved.service systemd-networkd.service
		systemd-logind.service systemd-binfmt.service
		proc-sys-fs-binfmt_misc.automount proc-sys-fs-binfmt_misc.mount
		dev-hugepages.mount dev-mqueue.mount sys-kernel-debug.mount
		sys-kernel-tracing.mount sys-kernel-config.mount
		sys-fs-fuse-connections.mount console-getty.service getty@.service
		getty.target systemd-remount-fs.service systemd-tmpfiles-clean.timer
		apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer
		e2scrub_all.timer e2scrub_reap.service fstrim.timer
		systemd-pcrphase.service systemd-pcrphase-sysinit.service
		systemd-firstboot.service systemd-hwdb-update.service`)
}

// BaseKey names everything that the base is made from, for the keys of what is
// built on it.
func BaseKey() string {
	return strings.Join(append([]string{baseVersion, baseSuite}, append(basePackages(), maskedUnits()...)...), " ")
}

// Base returns the directory of the Debian root file system under every host.
// It is built once, in about a minute.
func Base(ctx context.Context, progress io.Writer) (string, error) {
	dir, err := cache.Dir("base", BaseKey(), func(tmp string) error {
		if err := debian.Install(ctx, progress, "mmdebstrap"); err != nil {
			return err
		}
		fmt.Fprintf(progress, "base: Debian %s with %d packages, about 60 s\n", baseSuite, len(basePackages()))
		root := filepath.Join(tmp, "rootfs")
		cmd := exec.CommandContext(ctx, "mmdebstrap", "--quiet", "--mode=root", "--variant=minbase",
			"--include="+strings.Join(basePackages(), ","), baseSuite, root)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, tail(string(out), 2000))
		}
		return prepare(root)
	})
	if err != nil {
		return "", fmt.Errorf("base: %w", err)
	}
	return filepath.Join(dir, "rootfs"), nil
}

// prepare makes a plain Debian tree the root of throwaway hosts.
func prepare(root string) error {
	units := filepath.Join(root, "etc/systemd/system")
	var errs []error
	link := func(target, name string) {
		if err := os.Remove(name); err != nil && !os.IsNotExist(err) {
			errs = append(errs, err)
		}
		errs = append(errs, os.Symlink(target, name))
	}
	write := func(name, text string) {
		name = filepath.Join(root, name)
		errs = append(errs, os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o644))
	}
	for _, unit := range maskedUnits() {
		link("/dev/null", filepath.Join(units, unit))
	}
	link("/lib/systemd/system/multi-user.target", filepath.Join(units, "default.target"))
	write("etc/systemd/journald.conf.d/throwaway.conf",
		"[Journal]\nStorage=persistent\nReadKMsg=no\nAudit=no\nRateLimitIntervalSec=0\nSystemMaxUse=64M\n")
	// A power off must not wait for the default 90 s.
	write("etc/systemd/system.conf.d/throwaway.conf", "[Manager]\nDefaultTimeoutStopSec=20s\n")
	errs = append(errs, os.MkdirAll(filepath.Join(root, "var/log/journal"), 0o755))
	// Written for each host.
	for _, name := range []string{"etc/resolv.conf", "etc/machine-id", "etc/hostname"} {
		errs = append(errs, os.RemoveAll(filepath.Join(root, name)))
	}
	errs = append(errs, os.MkdirAll(filepath.Join(root, "var/lib/dbus"), 0o755))
	link("/etc/machine-id", filepath.Join(root, "var/lib/dbus/machine-id"))
	write(marker, markerText)
	return errors.Join(errs...)
}
