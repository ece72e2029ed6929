package steps

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

// guardedNode is a containerd's node whose upgrader has a program on the host,
// so that what watches over a swap is there: the switch, and the boot.
func guardedNode(t *testing.T) *containerdNode {
	t.Helper()
	n := newContainerdNode(t)
	n.env.Kube, n.env.Admin = noCluster, noCluster
	n.env.Program, n.env.Options.RunID = "/var/lib/upgrader/bundles/b/upgrader", "run"
	n.units.OnTimer(DeadManTimer, func(s hostexec.Transient) {
		want := []string{n.env.Program, "rollback", "--dead-man", "--run-id=run", "containerd", "--output=json"}
		if diff := cmp.Diff(want, s.Argv); diff != "" {
			t.Error(diff)
		}
		n.must(n.asAnother().DeadMan(t.Context(), stepContainerd))
	})
	n.units.OnTransient(UnitName, func(hostexec.Transient) {})
	return n
}

// asAnother is a runner of another process: it knows of the run what is on the
// disk.
func (n *containerdNode) asAnother() Runner {
	env := n.env
	env.Bundle, env.Record = nil, NewRecord(hostexec.NewFS(n.root), "run")
	return Runner{Env: env, Plan: []Step{containerdStep()}}
}

// killedInSwap lets the upgrader die right after the start of the new
// containerd.
func (n *containerdNode) killedInSwap() {
	n.t.Helper()
	n.units.OnStart(containerdUnit, func(pid int) error {
		n.must(n.start(pid))
		panic("killed")
	})
	killed(func() { _, _ = Runner{Env: n.env, Plan: []Step{containerdStep()}}.Work(n.t.Context()) })
	n.units.OnStart(containerdUnit, n.start)
	if diff := cmp.Diff(newFiles()["containerd-shim-runc-v2"], n.installed()["containerd-shim-runc-v2"]); diff != "" {
		n.t.Fatal(diff)
	}
}

// The upgrader dies after a swap to a containerd that hangs: the switch puts the
// old one back, and says so to whoever comes next.
func TestDeadManPutsBack(t *testing.T) {
	n := guardedNode(t)
	old := n.installed()
	n.spoil("containerd 2.3.7 hangs")
	n.killedInSwap()
	n.units.Elapse(DeadManTimer)
	if diff := cmp.Diff(old, n.installed()); diff != "" {
		t.Error(diff)
	}
	if !n.unit().Running() {
		t.Error("containerd was left stopped")
	}
	n.env.Record = NewRecord(hostexec.NewFS(n.root), "run")
	if h := mustHistory(t, n.env.Record.Journal()); h.Open || h.Closed != ClosedFailed {
		t.Errorf("open %v, closed %q", h.Open, h.Closed)
	}
	state := n.check()
	if state.Phase != Blocked || !strings.Contains(state.Blocks[0].Reason, "dead-man's switch") {
		t.Errorf("it is tried again: %+v", state)
	}
	if _, armed := n.units.Armed(DeadManTimer); armed {
		t.Error("it is armed still")
	}
}

// A unit that hangs in its swap is ended by the switch, which tells the unit's
// callers how that ended.
func TestDeadManConcludes(t *testing.T) {
	n := guardedNode(t)
	n.killedInSwap()
	ended := make(chan struct{})
	n.units.OnTransient(UnitName, func(hostexec.Transient) { <-ended })
	kill := sync.OnceFunc(func() { close(ended) })
	n.units.OnKill(UnitName, func(int) error { kill(); return nil })
	inv := Invocation{ID: "hanging", RunID: "run", Command: "run"}
	data, err := json.Marshal(inv)
	n.must(err)
	n.must(n.units.StartTransient(t.Context(), hostexec.Transient{
		Name: UnitName, Argv: []string{"upgrader"}, Env: []string{InvocationEnv + "=" + string(data)},
	}))
	n.units.Elapse(DeadManTimer)
	n.env.Record = NewRecord(hostexec.NewFS(n.root), "run")
	o, err := awaitOutcome(t.Context(), n.env, inv)
	n.must(err)
	if o.Exit != ExitRolledBack || !strings.Contains(o.Error, "dead-man's switch") || len(o.Results) != 1 {
		t.Errorf("outcome %+v", o)
	}
}

// A unit that was killed by somebody else has no outcome.
func TestKilledWithoutOutcome(t *testing.T) {
	n := guardedNode(t)
	_, err := awaitOutcome(t.Context(), n.env, Invocation{ID: "killed", RunID: "run"})
	if err == nil || !strings.Contains(err.Error(), "ended without an outcome") || len(Hints(err)) == 0 {
		t.Errorf("error: %v", err)
	}
}

// A swap that has come to its end is not touched by a switch that fires late.
func TestDeadManFindsNothingToDo(t *testing.T) {
	n := guardedNode(t)
	_, err := Runner{Env: n.env, Plan: []Step{containerdStep()}}.Work(t.Context())
	n.must(err)
	if _, armed := n.units.Armed(DeadManTimer); armed {
		t.Error("health did not disarm it")
	}
	// The unit has gone on to another step meanwhile: it is not to be killed.
	n.units.OnKill(UnitName, func(int) error { t.Error("the unit was killed"); return nil })
	n.must(n.units.StartTransient(t.Context(), hostexec.Transient{Name: UnitName, Argv: []string{"upgrader"}}))
	n.must(n.asAnother().DeadMan(t.Context(), stepContainerd))
	if diff := cmp.Diff(newFiles(), n.installed()); diff != "" {
		t.Error(diff)
	}
}

// A switch that cannot be armed: nothing is stopped.
func TestDeadManHasToBeArmed(t *testing.T) {
	n := guardedNode(t)
	old := n.installed()
	_, stops := n.units.Count(containerdUnit)
	n.units.Fail("start-timer", DeadManTimer, os.ErrPermission)
	_, err := Runner{Env: n.env, Plan: []Step{containerdStep()}}.Work(t.Context())
	if err == nil || !strings.Contains(err.Error(), "arm the dead-man's switch") {
		t.Errorf("error: %v", err)
	}
	if diff := cmp.Diff(old, n.installed()); diff != "" {
		t.Error(diff)
	}
	if _, now := n.units.Count(containerdUnit); now != stops {
		t.Error("containerd was stopped")
	}
}

// The power goes in the middle of a swap: at boot the old files are put back
// before containerd starts, and the run goes on.
func TestRecoverAtBoot(t *testing.T) {
	n := guardedNode(t)
	old := n.installed()
	n.killedInSwap()
	for _, file := range []string{recoveryFile, recoveryLink} {
		if _, err := os.Lstat(filepath.Join(n.root, file)); err != nil {
			t.Fatal(err)
		}
	}
	if text := n.read(recoveryFile); !strings.Contains(text, "Before=containerd.service kubelet.service\n") ||
		!strings.Contains(text, "ExecStart="+n.env.Program+" recover ") {
		t.Error(text)
	}
	boot := Env{Host: hostexec.Host{FS: hostexec.NewFS(n.root)}, Clock: n.env.Clock, Log: n.env.Log, Program: n.env.Program}
	n.must(Recover(t.Context(), boot))
	if diff := cmp.Diff(old, n.installed()); diff != "" {
		t.Error(diff)
	}
	n.must(Recover(t.Context(), boot)) // a second time changes nothing
	if diff := cmp.Diff(old, n.installed()); diff != "" {
		t.Error(diff)
	}
	n.must(n.units.Stop(t.Context(), containerdUnit))
	n.must(n.units.Start(t.Context(), containerdUnit))

	n.env.Record = NewRecord(hostexec.NewFS(n.root), "run")
	_, err := Runner{Env: n.env, Plan: []Step{containerdStep()}}.Work(t.Context())
	n.must(err)
	if diff := cmp.Diff(newFiles(), n.installed()); diff != "" {
		t.Error(diff)
	}
	for _, file := range []string{recoveryFile, recoveryLink} {
		if _, err := os.Lstat(filepath.Join(n.root, file)); !os.IsNotExist(err) {
			t.Errorf("%s outlives the run: %v", file, err)
		}
	}
}

// A finished upgrade of containerd is rolled back, its bundle being gone.
func TestRollbackContainerd(t *testing.T) {
	n := guardedNode(t)
	old := n.installed()
	_, err := Runner{Env: n.env, Plan: []Step{containerdStep()}}.Work(t.Context())
	n.must(err)
	n.must(os.RemoveAll(n.env.Bundle.Dir))
	results, err := n.asAnother().Rollback(t.Context(), "")
	n.must(err)
	if len(results) != 1 || results[0].Result != "rolled back" {
		t.Errorf("%+v", results)
	}
	if diff := cmp.Diff(old, n.installed()); diff != "" {
		t.Error(diff)
	}
	if !n.unit().Running() {
		t.Error("containerd was left stopped")
	}
	r, err := ReadReceipt(t.Context(), n.env.Host.FS, "run")
	n.must(err)
	if r.Outcome != ClosedRolledBack || len(r.Files) != 4 {
		t.Errorf("receipt: %+v", r)
	}
	for _, f := range r.Files {
		if f.Before != f.After || f.Before == absent {
			t.Errorf("receipt: %+v", f)
		}
	}
}
