//go:build e2e

package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/node-upgrader/node-upgrader/hostexec"
	"github.com/node-upgrader/node-upgrader/test/host"
)

// armVariable makes this binary a process that arms a timer and is then ended.
const armVariable = "E2E_ARM_TIMER_AT"

const (
	timerName = "upgrader-test.timer"
	timerLog  = "/var/log/timer-test.log"
)

// fires appends a line when it fires, and then sleeps. Its words are odd ones:
// at a daemon-reload systemd reads them from a file that it has written.
func fires(after time.Duration, line, sleep string) hostexec.Timer {
	return hostexec.Timer{Name: timerName, After: after, Service: hostexec.Transient{
		Description: "a test of timers", Env: []string{"LINE=" + line, `ODD="%n" $HOME; '\'`}, Log: timerLog, StopGrace: time.Second,
		Argv: []string{timerScript, `"%n" ' \ ü`, sleep},
	}}
}

const timerScript = "/usr/local/bin/fires"

// logged is what the script writes.
func logged(lines ...string) string {
	var all string
	for _, l := range lines {
		all += l + `: "%n" ' \ ü / "%n" $HOME; '\'` + "\n"
	}
	return all
}

// armAndWait is that process: it arms the timer, says so, and hangs.
func armAndWait(root string) error {
	units := hostexec.NewSystemd(hostexec.NewFS(root))
	if err := units.StartTransientTimer(context.Background(), fires(2*time.Second, "armed by the dead", "0")); err != nil {
		return err
	}
	fmt.Println("armed")
	time.Sleep(time.Hour)
	return errors.New("nobody has ended this process")
}

// A timer that was armed fires whoever has died since, and no other time.
func TestTransientTimer(t *testing.T) {
	g, err := host.Open(t.Context(), host.Options{Progress: lines{t}})
	must(t, err)
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	h, err := g.Add(t.Context(), host.Spec{Name: "node", IP: "10.89.0.11"})
	must(t, err)
	must(t, h.Boot(t.Context()))
	root := fmt.Sprintf("/proc/%d/root", h.PID())
	fs := hostexec.NewFS(root)
	units := hostexec.NewSystemd(fs)
	t.Cleanup(units.Close)
	ctx := t.Context()
	log := func() string {
		data, err := fs.ReadFile(timerLog)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		return string(data)
	}
	// waits until it has fired, and is how long after start that was.
	fired := func(line string, start time.Time) time.Duration {
		t.Helper()
		for !strings.HasSuffix(log(), logged(line)) {
			if time.Since(start) > 20*time.Second {
				t.Fatalf("%q has not fired; the log: %q", line, log())
			}
			time.Sleep(10 * time.Millisecond)
		}
		return time.Since(start)
	}
	gone := func(unit string) {
		t.Helper()
		for start := time.Now(); ; time.Sleep(50 * time.Millisecond) {
			u, err := units.Show(ctx, unit)
			must(t, err)
			if !u.Exists() {
				return
			}
			if time.Since(start) > 10*time.Second {
				t.Fatalf("still there: %+v", u)
			}
		}
	}

	must(t, fs.WriteFile(ctx, timerScript, []byte("#!/bin/sh\nprintf '%s: %s / %s\\n' \"$LINE\" \"$1\" \"$ODD\"\nexec sleep \"$2\"\n"), 0o755))
	must(t, units.StopTransient(ctx, timerName)) // that is not there

	start := time.Now()
	armer := exec.Command("/proc/self/exe")
	armer.Env = append(os.Environ(), armVariable+"="+root)
	armer.Stderr = os.Stderr
	out, err := armer.StdoutPipe()
	must(t, err)
	must(t, armer.Start())
	if said, _, err := bufio.NewReader(out).ReadLine(); string(said) != "armed" {
		t.Fatalf("the armer said %q: %v", said, err)
	}
	must(t, armer.Process.Signal(syscall.SIGKILL))
	_ = armer.Wait()
	u, err := units.Show(ctx, timerName)
	must(t, err)
	if !u.Exists() || u.ActiveState != "active" || u.SubState != "waiting" {
		t.Fatalf("armed: %+v", u)
	}
	must(t, units.Reload(ctx))
	if took := fired("armed by the dead", start); took < 2*time.Second || took > 5*time.Second {
		t.Errorf("fired after %s, want 2 s and little more", took)
	}
	gone(timerName)
	gone("upgrader-test.service")

	// Armed again it is another one; while its service runs it cannot be.
	must(t, units.StartTransientTimer(ctx, fires(time.Second, "replaced", "0")))
	must(t, units.StartTransientTimer(ctx, fires(time.Hour, "replaced too", "0")))
	start = time.Now()
	must(t, units.StartTransientTimer(ctx, fires(time.Second, "the last one", "3")))
	must(t, units.Reload(ctx))
	if took := fired("the last one", start); took > 4*time.Second {
		t.Errorf("fired after %s, want 1 s and little more", took)
	}
	if err := units.StartTransientTimer(ctx, fires(time.Second, "never", "0")); !errors.Is(err, hostexec.ErrUnitExists) {
		t.Errorf("armed while its service runs: %v", err)
	}
	if u, err = units.Show(ctx, "upgrader-test.service"); err != nil || u.ActiveState != "active" {
		t.Errorf("the service was not let alone: %+v, %v", u, err)
	}
	gone("upgrader-test.service")

	must(t, units.StartTransientTimer(ctx, fires(time.Second, "disarmed", "0")))
	must(t, units.StopTransient(ctx, timerName))
	must(t, units.StopTransient(ctx, timerName))
	time.Sleep(3 * time.Second)
	if diff := cmp.Diff(logged("armed by the dead", "the last one"), log()); diff != "" {
		t.Error(diff)
	}
}

// A signal goes to the main process alone, and to nobody where there is none.
func TestKillUnit(t *testing.T) {
	g, err := host.Open(t.Context(), host.Options{Progress: lines{t}})
	must(t, err)
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	h, err := g.Add(t.Context(), host.Spec{Name: "node", IP: "10.89.0.11"})
	must(t, err)
	must(t, h.Boot(t.Context()))
	fs := hostexec.NewFS(fmt.Sprintf("/proc/%d/root", h.PID()))
	units := hostexec.NewSystemd(fs)
	t.Cleanup(units.Close)
	ctx := t.Context()
	const name = "kill-test.service"
	must(t, units.Kill(ctx, name, int(syscall.SIGUSR1)))
	must(t, units.StartTransient(ctx, hostexec.Transient{
		Name: name, Description: "a test of signals", Log: "/var/log/kill-test.log", StopGrace: time.Second,
		Argv: []string{"/bin/sh", "-c", "sleep 4242 & trap 'echo main' USR1\necho ready\nwhile :\ndo wait\ndone"},
	}))
	said := func(want string) {
		t.Helper()
		for start := time.Now(); ; time.Sleep(20 * time.Millisecond) {
			if data, _ := fs.ReadFile("/var/log/kill-test.log"); string(data) == want {
				return
			} else if time.Since(start) > 10*time.Second {
				t.Fatalf("the log: %q, want %q", data, want)
			}
		}
	}
	said("ready\n")
	must(t, units.Kill(ctx, name, int(syscall.SIGUSR1)))
	said("ready\nmain\n")
	if _, err := h.Exec(ctx, host.Command("pgrep", "-f", "sleep 4242")); err != nil {
		t.Errorf("the signal went to more than the main process: %v", err)
	}
	must(t, units.StopTransient(ctx, name))
	must(t, units.Kill(ctx, name, int(syscall.SIGUSR1)))
}
