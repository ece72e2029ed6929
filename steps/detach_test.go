package steps

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/node-upgrader/node-upgrader/hostexec"
	"github.com/node-upgrader/node-upgrader/hostexec/hostexectest"
)

// unitHost is a node whose unit runs work; work writes the log and the outcome
// as the real process does.
func unitHost(t *testing.T, work func(env Env, inv Invocation, log func(string))) Env {
	t.Helper()
	units := hostexectest.NewUnits()
	fs := hostexec.NewFS(t.TempDir())
	env := Env{
		Host: hostexec.Host{FS: fs, Units: units}, Record: NewRecord(fs, "run-1"), Clock: SystemClock(),
		Log: slog.New(slog.DiscardHandler), Options: Options{RunID: "run-1"},
	}
	units.OnTransient(UnitName, func(tr hostexec.Transient) {
		inv, err := ParseInvocation(tr.Env)
		if err != nil {
			t.Error(err)
			return
		}
		work(env, inv, func(line string) {
			if err := fs.AppendLine(inv.Log, []byte(line)); err != nil {
				t.Error(err)
			}
		})
	})
	return env
}

func invocation(env Env, id, command string) Invocation {
	return Invocation{
		ID: id, RunID: env.Options.RunID, Bundle: "sha256:b", Command: command, Flags: []string{"--role=worker"},
		Argv: []string{"/upgrader", command}, Log: env.Record.Path("log.jsonl"),
	}
}

func TestDetachReturnsLogAndOutcome(t *testing.T) {
	env := unitHost(t, func(env Env, inv Invocation, log func(string)) {
		log(`{"msg":"one"}`)
		log(`{"msg":"two"}`)
		o := Outcome{ID: inv.ID, Exit: ExitRolledBack, Error: "kubelet: no", Hints: []string{"look"}}
		if err := Conclude(context.Background(), env.Record, o); err != nil {
			t.Error(err)
		}
	})
	// An older invocation of the same run has logged before.
	if err := env.Record.Init(); err != nil {
		t.Fatal(err)
	}
	if err := env.Host.FS.AppendLine(env.Record.Path("log.jsonl"), []byte(`{"msg":"old"}`)); err != nil {
		t.Fatal(err)
	}
	var lines []string
	o, err := Detach(t.Context(), env, invocation(env, "a", "kubelet"), func(l []byte) { lines = append(lines, string(l)) })
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{`{"msg":"one"}`, `{"msg":"two"}`}, lines); diff != "" {
		t.Error(diff)
	}
	if err := o.Err(); ExitCode(err) != ExitRolledBack || err.Error() != "kubelet: no" || strings.Join(Hints(err), "") != "look" {
		t.Errorf("exit %d, %v, hints %v", ExitCode(err), err, Hints(err))
	}
}

func TestDetachTellsAKilledUnit(t *testing.T) {
	env := unitHost(t, func(Env, Invocation, func(string)) {})
	// The outcome of an earlier invocation must not be taken for this one's.
	if err := Conclude(t.Context(), env.Record, Outcome{ID: "before"}); err != nil {
		t.Fatal(err)
	}
	_, err := Detach(t.Context(), env, invocation(env, "a", "kubelet"), func([]byte) {})
	if err == nil || !strings.Contains(err.Error(), "killed") || len(Hints(err)) == 0 {
		t.Errorf("%v, hints %v", err, Hints(err))
	}
}

func TestDetachLeavesTheUnitAlone(t *testing.T) {
	release, ended := make(chan struct{}), make(chan struct{})
	env := unitHost(t, func(env Env, inv Invocation, log func(string)) {
		defer close(ended)
		log("started")
		<-release
		if err := Conclude(context.Background(), env.Record, Outcome{ID: inv.ID}); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	_, err := Detach(ctx, env, invocation(env, "a", "kubelet"), func([]byte) { cancel() })
	var detached *DetachedError
	if !errors.As(err, &detached) || detached.Invocation.ID != "a" {
		t.Fatalf("%v", err)
	}
	// Another run is refused, and told what runs; the same command follows it
	// from its beginning.
	other := invocation(env, "b", "kubelet")
	other.RunID = "run-2"
	_, err = Detach(t.Context(), env, other, func([]byte) {})
	if ExitCode(err) != ExitBlocked || !strings.Contains(err.Error(), "run run-1, kubelet, bundle sha256:b") {
		t.Errorf("exit %d: %v", ExitCode(err), err)
	}
	var lines []string
	o, err := Detach(t.Context(), env, invocation(env, "c", "kubelet"), func(l []byte) {
		lines = append(lines, string(l))
		close(release)
	})
	<-ended
	if err != nil || o.ID != "a" || cmp.Diff([]string{"started"}, lines) != "" {
		t.Errorf("outcome %+v, %v, lines %v", o, err, lines)
	}
}

// Another step of the same run waits for the one that runs.
func TestDetachWaitsForAnotherStepOfItsRun(t *testing.T) {
	var mu sync.Mutex
	var order []string
	env := unitHost(t, func(env Env, inv Invocation, log func(string)) {
		log(inv.Command + " begins")
		time.Sleep(100 * time.Millisecond)
		mu.Lock()
		order = append(order, inv.Command)
		mu.Unlock()
		if err := Conclude(context.Background(), env.Record, Outcome{ID: inv.ID, Exit: ExitFailed}); err != nil {
			t.Error(err)
		}
	})
	var wg sync.WaitGroup
	began := make(chan struct{})
	wg.Go(func() {
		var once sync.Once
		_, err := Detach(t.Context(), env, invocation(env, "a", "kubeadm"), func([]byte) { once.Do(func() { close(began) }) })
		if err != nil {
			t.Error(err)
		}
	})
	<-began
	o, err := Detach(t.Context(), env, invocation(env, "b", "kubelet"), func([]byte) {})
	wg.Wait()
	if err != nil || o.ID != "b" {
		t.Errorf("outcome %+v, %v", o, err)
	}
	if diff := cmp.Diff([]string{"kubeadm", "kubelet"}, order); diff != "" {
		t.Error(diff)
	}
}

// Many starts at once: one works, the others follow it; nobody is lost.
func TestFiftyStartsAtOnce(t *testing.T) {
	var mu sync.Mutex
	runs := 0
	env := unitHost(t, func(env Env, inv Invocation, _ func(string)) {
		mu.Lock()
		runs++
		mu.Unlock()
		time.Sleep(300 * time.Millisecond)
		if err := Conclude(context.Background(), env.Record, Outcome{ID: inv.ID}); err != nil {
			t.Error(err)
		}
	})
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			o, err := Detach(t.Context(), env, invocation(env, "same", "kubelet"), func([]byte) {})
			if err != nil || o.Exit != 0 {
				t.Errorf("%+v, %v", o, err)
			}
		})
	}
	wg.Wait()
	if runs != 1 {
		t.Errorf("%d units ran, want 1", runs)
	}
}

func TestTailKeepsATornLine(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "log")
	tail := &tail{fs: hostexec.NewFS(dir), path: "/log"}
	var lines []string
	read := func() {
		if err := tail.emit(func(l []byte) { lines = append(lines, string(l)) }); err != nil {
			t.Fatal(err)
		}
	}
	read() // not there yet
	for _, text := range []string{"one\ntw", "one\ntwo\nthr"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		read()
	}
	if diff := cmp.Diff([]string{"one", "two"}, lines); diff != "" {
		t.Error(diff)
	}
}

func TestInvocationSurvivesTheUnitsEnvironment(t *testing.T) {
	inv := Invocation{ID: "x", Flags: []string{`--pod-selector=a in (b,"c")`, "--config=/a b%n$HOME"}}
	data, err := json.Marshal(inv)
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseInvocation([]string{"PATH=/bin", InvocationEnv + "=" + string(data)})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(inv, got); diff != "" {
		t.Error(diff)
	}
	if _, err := ParseInvocation([]string{"PATH=/bin"}); err == nil {
		t.Error("a foreign unit was taken for ours")
	}
}
