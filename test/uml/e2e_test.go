//go:build e2e || e2e_vm

package uml

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/node-upgrader/node-upgrader/test/host"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// on is a machine made from spec, booted.
func on(t *testing.T, spec Spec) *Machine {
	t.Helper()
	m, err := New(spec)
	must(t, err)
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Errorf("clean up: %v", err)
		}
	})
	boot(t, m)
	return m
}

func boot(t *testing.T, m *Machine) {
	t.Helper()
	start := time.Now()
	must(t, m.Boot(t.Context()))
	t.Logf("%s booted in %.1f s", m.Name(), time.Since(start).Seconds())
}

// sh runs a shell's text in the machine, which has to succeed.
func sh(t *testing.T, m *Machine, text string) string {
	t.Helper()
	res, err := m.Exec(t.Context(), host.Command("sh", "-ec", text))
	if err != nil {
		t.Fatalf("%v\n%s", err, res.Stdout)
	}
	return strings.TrimSpace(res.Stdout)
}

func plain(t *testing.T) Spec {
	t.Helper()
	image, err := Image(t.Context(), os.Stderr)
	must(t, err)
	return Spec{Name: "node", IP: "10.89.0.11", Image: image, Memory: 1024}
}

func TestMachineLife(t *testing.T) {
	m := on(t, plain(t))
	if got := sh(t, m, "systemctl is-system-running || systemctl --failed"); got != "running" {
		t.Errorf("system is %s", got)
	}
	for command, want := range map[string]string{
		"hostname":                              "node",
		"getent hosts node":                     "10.89.0.11      node",
		"stat -fc %T /sys/fs/cgroup":            "cgroup2fs",
		"cat /sys/fs/cgroup/cgroup.controllers": "cpu io memory pids",
		"grep -c 'cpu MHz' /proc/cpuinfo":       "1",
		"iptables -V | grep -o legacy":          "legacy",
	} {
		if got := sh(t, m, command); got != want {
			t.Errorf("%s: %q, want %q", command, got, want)
		}
	}
	res, err := m.Exec(t.Context(), host.Cmd{Args: []string{"sh", "-c", "cat; echo $A >&2; exit 7"}, Env: []string{"A=b"}, Stdin: strings.NewReader("in")})
	var exit *host.ExitError
	if !errors.As(err, &exit) || exit.Code != 7 || res.Stdout != "in" || res.Stderr != "b\n" {
		t.Errorf("result %+v, error %v", res, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if _, err := m.Exec(ctx, host.Command("sh", "-c", "sleep 4711 & sleep 4711")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
	if res, _ := m.Exec(t.Context(), host.Command("pgrep", "-f", "sleep 4711")); res.Stdout != "" {
		t.Errorf("still there: %s", res.Stdout)
	}

	src := t.TempDir()
	big := bytes.Repeat([]byte("0123456789abcdef"), 4<<20)
	must(t, os.WriteFile(filepath.Join(src, "tool"), []byte("#!/bin/sh\necho tool\n"), 0o755))
	must(t, os.WriteFile(filepath.Join(src, "big"), big, 0o600))
	start := time.Now()
	must(t, m.CopyIn(src, "/opt/deep/er"))
	t.Logf("%d MiB copied in in %.1f s", len(big)>>20, time.Since(start).Seconds())
	if got := sh(t, m, "/opt/deep/er/tool; stat -c %a:%s /opt/deep/er/big"); got != "tool\n600:67108864" {
		t.Errorf("copied: %q", got)
	}
	sh(t, m, "ln -s /etc/hostname /etc/link")
	if data, err := m.ReadFile("/etc/link"); err != nil || string(data) != "node\n" {
		t.Errorf("through an absolute link: %q, %v", data, err)
	}
	if _, err := m.ReadFile("/etc/none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing file: %v", err)
	}
	start = time.Now()
	if res, err := m.Exec(t.Context(), host.Command("head", "-c", "2000000", "/dev/zero")); err != nil || len(res.Stdout) != 2000000 {
		t.Errorf("%d bytes, %v", len(res.Stdout), err)
	}
	t.Logf("2 MB over the line out in %.1f s", time.Since(start).Seconds())
	start = time.Now()
	if res, err := m.Exec(t.Context(), host.Cmd{Args: []string{"wc", "-c"}, Stdin: bytes.NewReader(big[:2000000])}); err != nil || strings.TrimSpace(res.Stdout) != "2000000" {
		t.Errorf("%s, %v", res.Stdout, err)
	}
	t.Logf("2 MB over the line in in %.1f s", time.Since(start).Seconds())

	start = time.Now()
	must(t, m.PowerOff(t.Context()))
	t.Logf("power off: %.1f s", time.Since(start).Seconds())
	if _, err := m.Exec(t.Context(), host.Command("true")); !errors.Is(err, host.ErrNotRunning) {
		t.Errorf("exec when off: %v", err)
	}
	snapshot := filepath.Join(t.TempDir(), "snapshot")
	must(t, m.Snapshot(snapshot))
	two := on(t, Spec{Name: "two", IP: "10.89.0.12", From: snapshot, Memory: 1024})
	if got := sh(t, two, "hostname; /opt/deep/er/tool"); got != "two\ntool" {
		t.Errorf("from a snapshot: %q", got)
	}
}

// What a power cut takes, and what it leaves.
func TestPowerCutTakesWhatIsNotSynced(t *testing.T) {
	m := on(t, plain(t))
	must(t, m.WriteFile("/root/old", []byte("old"), 0o600))
	sh(t, m, `
		cd /root
		echo kept >synced; sync synced; sync .
		echo lost >unsynced
		head -c 50000000 /dev/urandom >unsynced-big
		cp old forgotten; sync forgotten; sync .
		echo new >forgotten.tmp; mv forgotten.tmp forgotten
		cp old replaced; sync replaced; sync .
		echo new >replaced.tmp; sync replaced.tmp; mv replaced.tmp replaced; sync .
		mkdir dir; touch dir/a; sync dir/a dir .
		echo lost >>synced`)
	// Longer than a kernel keeps to itself what was written, if it is not told.
	time.Sleep(8 * time.Second)
	if got := sh(t, m, "cat /root/unsynced /root/synced /root/forgotten"); got != "lost\nkept\nlost\nnew" {
		t.Errorf("before: %q", got)
	}
	start := time.Now()
	must(t, m.Crash())
	t.Logf("cut in %.2f s", time.Since(start).Seconds())
	if m.Running() {
		t.Error("it runs")
	}
	boot(t, m)
	for file, want := range map[string]string{"synced": "kept\n", "replaced": "new\n", "unsynced": "", "old": "old", "dir/a": ""} {
		data, err := m.ReadFile("/root/" + file)
		if err != nil && (want != "" || !errors.Is(err, fs.ErrNotExist)) {
			t.Error(err)
		}
		if string(data) != want {
			t.Errorf("%s has %q, want %q", file, data, want)
		}
	}
	// Renamed into place without a sync: the old file or an empty one.
	if data, err := m.ReadFile("/root/forgotten"); err != nil || string(data) == "new\n" {
		t.Errorf("forgotten has %q, %v", data, err)
	}
	if data, err := m.ReadFile("/root/unsynced-big"); err == nil && len(bytes.Trim(data, "\x00")) > 0 {
		t.Errorf("%d bytes that were never synced are there", len(data))
	}
}

// A guest that ends by itself is off, and its disk is as it was.
func TestPowerOffFromInside(t *testing.T) {
	m := on(t, plain(t))
	must(t, m.WriteFile("/root/a", []byte("a"), 0o600))
	_, _ = m.Exec(t.Context(), host.Command("systemctl", "reboot", "--force"))
	for end := time.Now().Add(20 * time.Second); m.Running() && time.Now().Before(end); {
		time.Sleep(20 * time.Millisecond)
	}
	if m.Running() {
		t.Fatal("it runs")
	}
	boot(t, m)
	if data, err := m.ReadFile("/root/a"); string(data) != "a" {
		t.Errorf("%q, %v", data, err)
	}
}
