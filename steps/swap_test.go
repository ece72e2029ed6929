package steps

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/node-upgrader/node-upgrader/hostexec/hostexectest"
)

// A run's id is its bundle's, so the same record is met again months later: what
// is put back then is what lay there, not what an older use has kept.
func TestSwapPutsBackWhatLayThere(t *testing.T) {
	n := newContainerdNode(t)
	n.must(runContainerd(t.Context(), n.env))
	n.write("/usr/local/bin/containerd-shim-runc-v2", "shim 2.3.6", 0o755)
	n.units.OnStart(containerdUnit, failFirst(n))
	err := runContainerd(t.Context(), n.env)
	var back *RolledBackError
	if !errors.As(err, &back) {
		t.Fatalf("error: %v", err)
	}
	want := newFiles()
	want["containerd-shim-runc-v2"] = "shim 2.3.6"
	if diff := cmp.Diff(want, n.installed()); diff != "" {
		t.Error(diff)
	}
	if !n.unit().Running() {
		t.Error("containerd was left stopped")
	}
}

// failFirst is a start that fails once.
func failFirst(n *containerdNode) func(int) error {
	failed := false
	return func(pid int) error {
		if !failed {
			failed = true
			return errors.New("start containerd.service: no")
		}
		return n.start(pid)
	}
}

// With the bundle's files in place there is nothing to go back to.
func TestSwapHasNothingToPutBack(t *testing.T) {
	n := newContainerdNode(t)
	n.must(runContainerd(t.Context(), n.env))
	n.must(n.units.Stop(t.Context(), containerdUnit))
	n.units.OnStart(containerdUnit, failFirst(n))
	err := runContainerd(t.Context(), n.env)
	if err == nil || ExitCode(err) != ExitFailed {
		t.Fatalf("exit %d: %v", ExitCode(err), err)
	}
	if diff := cmp.Diff(newFiles(), n.installed()); diff != "" {
		t.Error(diff)
	}
	if !n.unit().Running() {
		t.Error("containerd was left stopped")
	}
}

// An attempt that was killed when all files were in place is taken back by the
// next one: its originals are this run's.
func TestSwapTakesBackAnInterruptedAttempt(t *testing.T) {
	n := newContainerdNode(t)
	old := n.installed()
	n.units.OnStart(containerdUnit, func(int) error {
		u := n.unit()
		u.ActiveState, u.MainPID = "inactive", 0
		n.units.Put(u)
		panic("killed")
	})
	func() {
		defer func() { _ = recover() }()
		_ = runContainerd(t.Context(), n.env)
	}()
	if diff := cmp.Diff(newFiles(), n.installed()); diff != "" {
		t.Fatal(diff)
	}
	n.units.OnStart(containerdUnit, failFirst(n))
	err := runContainerd(t.Context(), n.env)
	if ExitCode(err) != ExitRolledBack {
		t.Fatalf("error: %v", err)
	}
	if diff := cmp.Diff(old, n.installed()); diff != "" {
		t.Error(diff)
	}
}

// unwilling is a systemd that neither reloads nor forgets failures.
type unwilling struct{ *hostexectest.Units }

func (unwilling) Reload(context.Context) error              { return errors.New("no reload") }
func (unwilling) ResetFailed(context.Context, string) error { return errors.New("no reset") }

func TestSwapStartsWithoutReload(t *testing.T) {
	n := newContainerdNode(t)
	n.env.Host.Units = unwilling{n.units}
	n.must(runContainerd(t.Context(), n.env))
	if diff := cmp.Diff(newFiles(), n.installed()); diff != "" {
		t.Error(diff)
	}
	if !n.unit().Running() {
		t.Error("containerd was left stopped")
	}
}

func TestSwapStartsTheOldOneWithoutReload(t *testing.T) {
	n := newContainerdNode(t)
	old := n.installed()
	n.env.Host.Units = unwilling{n.units}
	n.spoil("containerd 2.3.7 fails")
	err := runContainerd(t.Context(), n.env)
	if ExitCode(err) != ExitRolledBack || !strings.Contains(err.Error(), "no reload") || !strings.Contains(err.Error(), "no reset") {
		t.Errorf("error: %v", err)
	}
	if diff := cmp.Diff(old, n.installed()); diff != "" {
		t.Error(diff)
	}
	if !n.unit().Running() {
		t.Error("containerd was left stopped")
	}
}

// What cannot be installed is found out while the service still runs.
func TestSwapPreparesBeforeTheStop(t *testing.T) {
	n := newContainerdNode(t)
	before := n.programs()
	n.must(os.WriteFile(filepath.Join(n.env.Bundle.Dir, "bin/runc"), []byte("runc 9.9.9"), 0o755)) //nolint:gosec // a program
	if err := runContainerd(t.Context(), n.env); ExitCode(err) != ExitFailed {
		t.Errorf("error: %v", err)
	}
	if diff := cmp.Diff(before, n.programs()); diff != "" {
		t.Error(diff)
	}
	if _, stops := n.units.Count(containerdUnit); stops != 0 {
		t.Error("containerd was stopped")
	}
}

func TestRoom(t *testing.T) {
	n := newContainerdNode(t)
	for i, f := range n.env.Bundle.Manifest.Files {
		if f.Name() == "ctr" {
			n.env.Bundle.Manifest.Files[i].Size = 1 << 60
		}
	}
	state := n.check()
	if state.Phase != Blocked || len(state.Blocks) != 1 {
		t.Fatalf("%+v", state)
	}
	for _, want := range []string{"disk: /usr/local/bin has ", "installing containerd, containerd-shim-runc-v2, ctr, runc needs 1099511627777 MiB"} {
		if !strings.Contains(state.Blocks[0].Reason, want) {
			t.Errorf("%q: no %q", state.Blocks[0].Reason, want)
		}
	}
}

// What was put back is not tried again and again, until the run or the files
// are others.
func TestSwapIsNotRepeated(t *testing.T) {
	n := newContainerdNode(t)
	n.spoil("containerd 2.3.7 fails")
	if err := runContainerd(t.Context(), n.env); ExitCode(err) != ExitRolledBack {
		t.Fatalf("error: %v", err)
	}
	_, stops := n.units.Count(containerdUnit)
	state := n.check()
	if state.Phase != Blocked || len(state.Blocks) != 1 || !strings.Contains(state.Blocks[0].Reason, "tried at 2001-09-09T01:46:") ||
		!strings.Contains(state.Blocks[0].Reason, "start containerd.service") || !strings.Contains(state.Blocks[0].Hint, "--run-id") {
		t.Errorf("check: %+v", state)
	}
	if err := runContainerd(t.Context(), n.env); ExitCode(err) != ExitBlocked {
		t.Errorf("error: %v", err)
	}
	if _, s := n.units.Count(containerdUnit); s != stops {
		t.Error("containerd was stopped again")
	}
	other := n.env
	other.Record = NewRecord(n.env.Host.FS, "another")
	if state, err := checkContainerd(t.Context(), other); err != nil || state.Phase != Needed {
		t.Errorf("another run: %+v %v", state, err)
	}
	n.spoil("containerd 2.3.7")
	n.must(runContainerd(t.Context(), n.env))
}

func TestKubeletIsNotRepeated(t *testing.T) {
	n := newKubeletNode(t)
	spoil(func(n *kubeletNode) { n.alive = false })(n)
	if err := n.step.Run(t.Context(), n.env); ExitCode(err) != ExitRolledBack {
		t.Fatalf("error: %v", err)
	}
	state, err := n.step.Check(t.Context(), n.env)
	if err != nil || state.Phase != Blocked || !strings.Contains(state.Blocks[0].Reason, "kubelet.service: tried at ") {
		t.Errorf("%+v %v", state, err)
	}
}

// An attempt that somebody stopped says nothing against the files.
func TestSwapThatWasStoppedIsRepeated(t *testing.T) {
	n := newContainerdNode(t)
	ctx, stop := context.WithCancel(t.Context())
	n.units.OnStart(containerdUnit, func(pid int) error {
		stop()
		return n.start(pid)
	})
	if err := runContainerd(ctx, n.env); ExitCode(err) != ExitRolledBack {
		t.Fatalf("error: %v", err)
	}
	if state := n.check(); state.Phase != Needed {
		t.Errorf("%+v", state)
	}
}
