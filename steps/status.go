package steps

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

// Status is where a node stands: what runs now, and what the runs that are
// remembered did.
type Status struct {
	Schema  int         `json:"schema"`
	Running *Invocation `json:"running,omitempty"`
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

// RunState is one run's results, in the order of the steps.
type RunState struct {
	ID      string   `json:"id"`
	Results []Result `json:"results"`
	Outcome *Outcome `json:"outcome,omitempty"`
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
	staged, err := list(host.FS, Store)
	if err != nil {
		return status, err
	}
	for _, name := range staged {
		if !strings.HasPrefix(name, ".") {
			status.Staged = append(status.Staged, "sha256:"+name)
		}
	}
	runs, err := list(host.FS, path.Join(StateDir, "runs"))
	if err != nil {
		return status, err
	}
	for _, id := range runs {
		run, err := runState(host.FS, id)
		if err != nil {
			return status, err
		}
		status.Runs = append(status.Runs, run)
	}
	slices.SortStableFunc(status.Runs, func(a, b RunState) int { return cmp.Compare(b.started(), a.started()) })
	return status, nil
}

func (r RunState) started() int64 {
	if len(r.Results) == 0 {
		return 0
	}
	return r.Results[len(r.Results)-1].Started.UnixNano()
}

func runState(fs hostexec.FS, id string) (RunState, error) {
	record := NewRecord(fs, id)
	run := RunState{ID: id}
	for _, name := range Names(Plan(Options{})) {
		var r Result
		there, err := record.Load("step-"+name, &r)
		if err != nil {
			return run, err
		}
		if there {
			run.Results = append(run.Results, r)
		}
	}
	slices.SortStableFunc(run.Results, func(a, b Result) int { return a.Started.Compare(b.Started) })
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
