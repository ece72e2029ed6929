package steps

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

// Status is where a node stands: what runs now, and what the runs that are
// remembered did.
type Status struct {
	Schema  int         `json:"schema"`
	Running *Invocation `json:"running,omitempty"`
	// DeadMan: the dead-man's switch is armed, for a swap that is not proven.
	DeadMan bool        `json:"deadMan"`
	Units   []UnitState `json:"units"`
	Staged  []string    `json:"staged"` // digests of the bundles on the host
	Runs    []RunState  `json:"runs"`   // newest first
}

// UnitState is a service that the upgrader cares for.
type UnitState struct {
	Unit   string `json:"unit"`
	State  string `json:"state"`
	Binary string `json:"binary,omitempty"`
	PID    int    `json:"pid,omitempty"`
}

// RunState is what is known of one run.
type RunState struct {
	Run
	Open    bool      `json:"open"`
	Begun   bool      `json:"-"`                // it is open, and has changed the host
	Closed  string    `json:"closed,omitempty"` // how it ended last
	Started time.Time `json:"started"`
	Ended   time.Time `json:"ended"` // its last entry, for an open one
	Step    string    `json:"step,omitempty"`
	Results []Result  `json:"results"`
	// Pending are the changes that were announced and whose end is not recorded.
	Pending []Entry  `json:"pending,omitempty"`
	Outcome *Outcome `json:"outcome,omitempty"`
	Error   string   `json:"error,omitempty"` // why its journal cannot be read
	Hints   []string `json:"hints,omitempty"` // what to do about that
}

// LookStatus reads the host's records and asks its systemd; it changes nothing.
func LookStatus(ctx context.Context, host hostexec.Host) (Status, error) {
	status := Status{Schema: 1, Staged: []string{}, Runs: []RunState{}}
	for _, name := range []string{"containerd.service", "kubelet.service"} {
		unit, err := host.Units.Show(ctx, name)
		if err != nil {
			return status, err
		}
		binary, _ := unit.Binary() // a unit without one has none to show
		status.Units = append(status.Units, UnitState{Unit: name, State: unit.ActiveState, Binary: binary, PID: unit.MainPID})
	}
	unit, err := host.Units.Show(ctx, UnitName)
	if err != nil {
		return status, err
	}
	if unit.Running() || unit.ActiveState == "deactivating" {
		inv, err := ParseInvocation(unit.Environment)
		if err != nil {
			return status, err
		}
		status.Running = &inv
	}
	timer, err := host.Units.Show(ctx, DeadManTimer)
	if err != nil {
		return status, err
	}
	status.DeadMan = timer.ActiveState == "active"
	staged, err := list(host.FS, Store)
	if err != nil {
		return status, err
	}
	for _, name := range staged {
		if !strings.HasPrefix(name, ".") {
			status.Staged = append(status.Staged, "sha256:"+name)
		}
	}
	status.Runs, err = allRuns(host.FS)
	return status, err
}

// allRuns are the runs that are remembered, newest first.
func allRuns(fs hostexec.FS) ([]RunState, error) {
	ids, err := list(fs, runsDir)
	if err != nil {
		return nil, err
	}
	runs := []RunState{}
	for _, id := range ids {
		run, err := runState(fs, id)
		if err != nil {
			return nil, err
		}
		runs = append(runs, run)
	}
	slices.SortStableFunc(runs, func(a, b RunState) int { return b.Ended.Compare(a.Ended) })
	return runs, nil
}

func runState(fs hostexec.FS, id string) (RunState, error) {
	record := NewRecord(fs, id)
	run := RunState{Run: Run{ID: id}, Results: []Result{}}
	history, err := record.Journal().History()
	var damaged *BlockedError
	if errors.As(err, &damaged) {
		run.Error, run.Hints = err.Error(), Hints(err)
		return run, nil
	}
	if err != nil {
		return run, err
	}
	if history.Seq > 0 {
		run.Run = history.Run
	}
	run.Begun = history.Begun()
	run.Open, run.Closed, run.Step, run.Pending = history.Open, history.Closed, history.Step, history.Pending
	run.Started, run.Ended = history.Started, history.Ended
	run.Results = append(run.Results, history.Results...)
	var o Outcome
	there, err := record.Load("outcome", &o)
	if there {
		run.Outcome = &o
	}
	return run, err
}

// list is the names in a directory; none when it is not there.
func list(fs hostexec.FS, dir string) ([]string, error) {
	entries, err := fs.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names, err
}
