//go:build e2e

package host

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func ground(t *testing.T) *Ground {
	t.Helper()
	g, err := Open(t.Context(), Options{Progress: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	return g
}

func booted(t *testing.T, g *Ground, spec Spec) *Host {
	t.Helper()
	h, err := g.Add(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	if err := h.Boot(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Logf("%s booted in %.2f s", h.Name(), time.Since(start).Seconds())
	return h
}

// run runs a command that must succeed.
func run(t *testing.T, h *Host, args ...string) string {
	t.Helper()
	res, err := h.Exec(t.Context(), Command(args...))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(res.Stdout)
}

func TestHostLife(t *testing.T) {
	g := ground(t)
	h := booted(t, g, Spec{Name: "node", IP: "10.89.0.11"})

	if got := run(t, h, "hostname"); got != "node" {
		t.Errorf("hostname %q", got)
	}
	if got := run(t, h, "systemctl", "is-system-running"); got != "running" {
		t.Errorf("system is %s: %s", got, run(t, h, "systemctl", "--failed", "--no-legend"))
	}
	for line := range strings.SplitSeq(run(t, h, "cat", "/proc/self/cgroup"), "\n") {
		if !strings.HasSuffix(line, ":/admin") {
			t.Errorf("a command's cgroup is %s", line)
		}
	}
	res, err := h.Exec(t.Context(), Cmd{Args: []string{"sh", "-c", "cat; echo $A >&2; exit 7"}, Env: []string{"A=b"}, Stdin: strings.NewReader("in")})
	var exit *ExitError
	if !errors.As(err, &exit) || exit.Code != 7 || res.Code != 7 || res.Stdout != "in" || res.Stderr != "b\n" {
		t.Errorf("result %+v, error %v", res, err)
	}
	if _, err := h.Exec(t.Context(), Command("no-such-program")); err == nil || errors.As(err, &exit) && exit.Code == 0 {
		t.Errorf("a missing program: %v", err)
	}

	src := t.TempDir()
	if err := os.WriteFile(filepath.Join(src, "tool"), []byte("#!/bin/sh\necho tool\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := h.CopyIn(src, "/opt/deep/er"); err != nil {
		t.Fatal(err)
	}
	if got := run(t, h, "/opt/deep/er/tool"); got != "tool" {
		t.Errorf("copied tool says %q", got)
	}
	run(t, h, "ln", "-s", "/etc/hostname", "/etc/link")
	if data, err := h.ReadFile("/etc/link"); err != nil || string(data) != "node\n" {
		t.Errorf("through an absolute link: %q, %v", data, err)
	}
	if _, err := h.ReadFile("/etc/none"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing file: %v", err)
	}
	write(t, h, "/etc/kept", "1")
	write(t, h, "/var/lib/kept", "2")

	before := time.Now()
	if err := h.PowerOff(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Logf("power off: %.2f s", time.Since(before).Seconds())
	if _, err := h.Exec(t.Context(), Command("true")); !errors.Is(err, ErrNotRunning) {
		t.Errorf("exec when off: %v", err)
	}
	reboot(t, h)
	if a, b := run(t, h, "cat", "/etc/kept"), run(t, h, "cat", "/var/lib/kept"); a != "1" || b != "2" {
		t.Errorf("after power off: %q, %q", a, b)
	}

	write(t, h, "/var/lib/kept", "3")
	pid := h.PID()
	before = time.Now()
	if err := h.Crash(); err != nil {
		t.Fatal(err)
	}
	t.Logf("crash: %.2f s", time.Since(before).Seconds())
	if err := unix.Kill(pid, 0); !errors.Is(err, unix.ESRCH) {
		t.Errorf("PID 1 after a crash: %v", err)
	}
	reboot(t, h)
	if got := run(t, h, "cat", "/var/lib/kept"); got != "3" {
		t.Errorf("after a crash: %q", got)
	}
}

func write(t *testing.T, h *Host, name, text string) {
	t.Helper()
	if err := h.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func reboot(t *testing.T, h *Host) {
	t.Helper()
	if err := h.Boot(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestExecEndsWithItsContext(t *testing.T) {
	h := booted(t, ground(t), Spec{Name: "node", IP: "10.89.0.11"})
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	_, err := h.Exec(ctx, Command("sh", "-c", "sleep 4711 & sleep 4711"))
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
	if res, _ := h.Exec(t.Context(), Command("pgrep", "-f", "sleep 4711")); res.Stdout != "" {
		t.Errorf("still there: %s", res.Stdout)
	}
}

func TestSnapshot(t *testing.T) {
	g := ground(t)
	h := booted(t, g, Spec{Name: "one", IP: "10.89.0.11"})
	write(t, h, "/etc/kept", "1")
	run(t, h, "rm", "/etc/debian_version") // a whiteout
	run(t, h, "rm", "-r", "/usr/share/doc")
	run(t, h, "mkdir", "/usr/share/doc") // an opaque directory
	if err := h.PowerOff(t.Context()); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "snapshot")
	if err := h.Snapshot(dir); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	copied := booted(t, g, Spec{Name: "two", IP: "10.89.0.12", From: dir})
	t.Logf("a fresh host from a snapshot: %.2f s", time.Since(start).Seconds())
	if got := run(t, copied, "cat", "/etc/kept"); got != "1" {
		t.Errorf("kept %q", got)
	}
	if got := run(t, copied, "hostname"); got != "two" {
		t.Errorf("hostname %q", got)
	}
	if got := run(t, copied, "ls", "/usr/share/doc"); got != "" {
		t.Errorf("the removed directory has %q", got)
	}
	if _, err := copied.Exec(t.Context(), Command("test", "!", "-e", "/etc/debian_version")); err != nil {
		t.Errorf("the removed file is back: %v", err)
	}
}

func TestTwoHostsReachEachOther(t *testing.T) {
	g := ground(t)
	one := booted(t, g, Spec{Name: "one", IP: "10.89.0.11"})
	booted(t, g, Spec{Name: "two", IP: "10.89.0.12"})
	listen := make(chan error, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	go func() {
		_, err := g.Host("two").Exec(ctx, Command("socat", "TCP-LISTEN:4711,fork", "SYSTEM:echo hello"))
		listen <- err
	}()
	got := run(t, one, "sh", "-c", "for i in 1 2 3 4 5 6 7 8 9; do socat -u TCP:10.89.0.12:4711 STDOUT && break; sleep 0.2; done")
	if got != "hello" {
		t.Errorf("one hears %q from two", got)
	}
	c, err := g.DialContext(ctx, "tcp", "10.89.0.12:4711")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	answer := make([]byte, 5)
	if _, err := c.Read(answer); err != nil || string(answer) != "hello" {
		t.Errorf("from the gateway: %q, %v", answer, err)
	}
	cancel()
	if err := <-listen; !errors.Is(err, context.Canceled) {
		t.Errorf("the listener ended with %v", err)
	}
}

func TestTwoGroundsAtOnce(t *testing.T) {
	first, second := ground(t), ground(t)
	booted(t, first, Spec{Name: "node", IP: "10.89.0.11"})
	booted(t, second, Spec{Name: "node", IP: "10.89.0.11"})
}

func TestRefusesToBootWithoutTheMarker(t *testing.T) {
	h := booted(t, ground(t), Spec{Name: "node", IP: "10.89.0.11"})
	run(t, h, "rm", marker)
	if err := h.Crash(); err != nil {
		t.Fatal(err)
	}
	err := h.Boot(t.Context())
	if !errors.Is(err, ErrRefused) {
		t.Errorf("error %v", err)
	}
	if h.Running() {
		t.Error("it runs")
	}
	t.Log(err)
}
