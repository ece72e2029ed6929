//go:build e2e

package host

import (
	"bufio"
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/node-upgrader/node-upgrader/test/cache"
)

// leftovers lists what of the ground is still on this machine.
func leftovers(t *testing.T, name string) []string {
	t.Helper()
	var found []string
	processes, err := filepath.Glob("/proc/[0-9]*/cmdline")
	must(t, err)
	for _, p := range processes {
		// Keepers and the bridge's process; a host's own are in its cgroups.
		if data, _ := os.ReadFile(p); strings.HasPrefix(string(data), "node-upgrader-test-") {
			if env, _ := os.ReadFile(filepath.Join(filepath.Dir(p), "environ")); strings.Contains(string(env), ownerVariable+"="+name) {
				found = append(found, p)
			}
		}
	}
	mounts, err := mountinfo.GetMounts(func(i *mountinfo.Info) (skip, stop bool) {
		return !strings.Contains(i.Mountpoint, cache.Root()+"/run/"+name), false
	})
	must(t, err)
	for _, m := range mounts {
		found = append(found, "mount "+m.Mountpoint)
	}
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && strings.HasPrefix(d.Name(), "upgrader-"+name+"-") {
			found = append(found, "cgroup "+path)
		}
		return nil
	})
	if _, err := os.Stat(filepath.Join(runDir(), name)); err == nil {
		found = append(found, "directory of the ground")
	}
	return found
}

// links lists the machine's own network links: none of ours may show.
func links(t *testing.T) string {
	t.Helper()
	out, err := os.ReadFile("/proc/net/dev")
	must(t, err)
	var names []string
	for line := range strings.SplitSeq(string(out), "\n") {
		if name, _, ok := strings.Cut(line, ":"); ok {
			names = append(names, strings.TrimSpace(name))
		}
	}
	return strings.Join(names, " ")
}

func TestNothingIsLeft(t *testing.T) {
	before := links(t)
	t.Setenv("LEFTOVER_TEST", "left1")
	g, err := Open(t.Context(), Options{Name: "left1"})
	must(t, err)
	h := booted(t, g, Spec{Name: "node", IP: "10.89.0.11"})
	bridge, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", g.record.LAN.PID))
	must(t, err)
	if links(t) != before {
		t.Errorf("the machine's links became %s", links(t))
	}
	if found := leftovers(t, "left1"); len(found) < 3 {
		t.Errorf("while it runs only these are found: %v", found)
	}
	keepKernel(t)
	run(t, h, "sysctl", "-qw", "kernel.panic="+changedPanic) // as the kubelet does
	must(t, g.Close(), g.Close())
	assertGone(t, "left1", 0)
	assertNamespaceGone(t, bridge)
	assertKernelRestored(t)
}

const (
	panicFile    = "/proc/sys/kernel/panic"
	changedPanic = "17"
)

// keepKernel undoes the test's change itself where other grounds are open: the
// last of them restores what was before all.
func keepKernel(t *testing.T) {
	t.Helper()
	before, err := os.ReadFile(panicFile)
	must(t, err)
	t.Cleanup(func() {
		if now, err := os.ReadFile(panicFile); err == nil && strings.TrimSpace(string(now)) == changedPanic {
			must(t, os.WriteFile(panicFile, before, 0))
		}
	})
}

// assertKernelRestored checks what the last ground to go restores.
func assertKernelRestored(t *testing.T) {
	t.Helper()
	if dirs, err := groundDirs(); err != nil || len(dirs) > 0 {
		t.Logf("kernel settings not looked at: other grounds are open (%v, %v)", dirs, err)
		return
	}
	if value, err := os.ReadFile(panicFile); err != nil || strings.TrimSpace(string(value)) == changedPanic {
		t.Errorf("kernel.panic is %s, %v", value, err)
	}
}

// assertNamespaceGone checks that no process is in a network namespace.
func assertNamespaceGone(t *testing.T, name string) {
	t.Helper()
	namespaces, err := filepath.Glob("/proc/[0-9]*/ns/net")
	must(t, err)
	for _, ns := range namespaces {
		if target, _ := os.Readlink(ns); target == name {
			t.Errorf("%s is %s", ns, name)
		}
	}
}

func assertGone(t *testing.T, name string, within time.Duration) {
	t.Helper()
	for end := time.Now().Add(within); len(leftovers(t, name)) > 0 && time.Now().Before(end); {
		time.Sleep(20 * time.Millisecond)
	}
	if found := leftovers(t, name); len(found) > 0 {
		t.Errorf("left behind: %s", strings.Join(found, "\n"))
	}
}

// ownAHost is the process that the tests below end while its host runs.
func ownAHost(name string) error {
	ctx := context.Background()
	g, err := Open(ctx, Options{Name: name})
	if err != nil {
		return err
	}
	h, err := g.Add(ctx, Spec{Name: "node", IP: "10.89.0.11"})
	if err != nil {
		return err
	}
	if err := h.Boot(ctx); err != nil {
		return err
	}
	if _, err := h.Exec(ctx, Command("sysctl", "-qw", "kernel.panic="+changedPanic)); err != nil {
		return err
	}
	fmt.Println("up", g.record.LAN.PID)
	select {}
}

func TestNothingIsLeftByAProcessThatWasEnded(t *testing.T) {
	for _, signal := range []unix.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGKILL} {
		t.Run(unix.SignalName(signal), func(t *testing.T) {
			name := strings.ToLower("left-" + strings.TrimPrefix(unix.SignalName(signal), "SIG"))
			keepKernel(t)
			owner, _ := startOwner(t, name)
			must(t, owner.Process.Signal(signal))
			_ = owner.Wait()
			start := time.Now()
			assertGone(t, name, 10*time.Second)
			t.Logf("gone after %.2f s", time.Since(start).Seconds())
			assertKernelRestored(t)
		})
	}
}

// Also when the helpers are killed with their owner, the next ground cleans up.
func TestTheNextGroundSweeps(t *testing.T) {
	const name = "left-all"
	keepKernel(t)
	owner, lan := startOwner(t, name)
	r, err := readRecord(filepath.Join(runDir(), name))
	must(t, err)
	must(t, unix.Kill(lan, unix.SIGKILL), r.Hosts["node"].Keeper.signal(unix.SIGKILL), owner.Process.Kill())
	_ = owner.Wait()
	if len(leftovers(t, name)) == 0 {
		t.Error("nothing is left to sweep")
	}
	if !r.Hosts["node"].Init.waitGone(3 * time.Second) {
		t.Error("PID 1 outlived its keeper")
	}
	g, err := Open(t.Context(), Options{})
	must(t, err)
	assertGone(t, name, 0)
	must(t, g.Close())
}

func startOwner(t *testing.T, name string) (owner *exec.Cmd, lan int) {
	t.Helper()
	owner = exec.CommandContext(t.Context(), "/proc/self/exe")
	owner.Env = append(os.Environ(), ownerVariable+"="+name)
	owner.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	out, err := owner.StdoutPipe()
	must(t, err, owner.Start())
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if n, _ := fmt.Sscanf(lines.Text(), "up %d", &lan); n == 1 {
			go func() { // so that it never blocks
				for lines.Scan() {
				}
			}()
			return owner, lan
		}
	}
	t.Fatal("the owner has not booted its host")
	return nil, 0
}
