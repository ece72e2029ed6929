package steps

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

// UnitName is the one systemd unit that may change this node; being loaded
// once only, it is the node's lock.
const UnitName = "upgrader.service"

// InvocationEnv is the unit's environment variable that holds its Invocation
// as JSON: systemd itself remembers what the unit runs.
const InvocationEnv = "UPGRADER_INVOCATION"

// Invocation is one start of the unit.
type Invocation struct {
	ID      string   `json:"id"` // distinguishes this start from every other
	RunID   string   `json:"runID"`
	Bundle  string   `json:"bundle"`
	By      string   `json:"by"`      // who asked for it
	Command string   `json:"command"` // run, rollback, abandon, or a step's name
	Args    []string `json:"args,omitempty"`
	Flags   []string `json:"flags"` // those that say what is done
	Argv    []string `json:"argv"`
	Log     string   `json:"log"`
	Offset  int64    `json:"offset"` // where in Log this invocation begins
}

// DetachedError is the caller's leaving while the unit goes on.
type DetachedError struct{ Invocation Invocation }

func (e *DetachedError) Error() string {
	return fmt.Sprintf("detached: %s goes on in %s", e.Invocation.Command, UnitName)
}

// Detach runs inv as the unit, or attaches to the unit where it runs the same
// already, hands each line of its log to emit, from the invocation's beginning,
// and returns how it ended. Another run's unit is a *BlockedError that names
// it. When ctx ends the unit goes on: *DetachedError.
func Detach(ctx context.Context, env Env, inv Invocation, emit func(line []byte)) (Outcome, error) {
	for {
		if o, attached, err := Attach(ctx, env, inv, emit); attached || err != nil {
			return o, err
		}
		switch started, err := start(ctx, env, inv); {
		case errors.Is(err, hostexec.ErrUnitExists):
			// Somebody was faster: attach, or be told who it is.
		case err != nil:
			return Outcome{}, err
		default:
			return follow(ctx, env, started, emit)
		}
		if err := env.Clock.Sleep(ctx, 50*time.Millisecond); err != nil {
			return Outcome{}, err
		}
	}
}

// Attach follows the unit to its end where it runs the same work as inv. Where
// it runs another step of the same run, that is followed too, and then nothing
// of inv was done: false, as when nothing runs. Another run is a *BlockedError.
func Attach(ctx context.Context, env Env, inv Invocation, emit func(line []byte)) (Outcome, bool, error) {
	unit, err := env.Host.Units.Show(ctx, UnitName)
	if err != nil || !unit.Running() && unit.ActiveState != "deactivating" {
		return Outcome{}, false, err
	}
	running, err := ParseInvocation(unit.Environment)
	if err != nil {
		return Outcome{}, false, err
	}
	if running.RunID != inv.RunID || running.Bundle != inv.Bundle {
		return Outcome{}, false, &BlockedError{Blocks: []Block{{
			Reason: fmt.Sprintf("another upgrade works on this node: run %s, %s, bundle %s", running.RunID, running.Command, running.Bundle),
			Hint:   "wait for it (upgrader status), or stop it: systemctl stop " + UnitName,
		}}}
	}
	env.Log.Info("attached to the running unit", "unit", UnitName, "command", running.Command)
	o, err := follow(ctx, env, running, emit)
	if running.Command == inv.Command && slices.Equal(running.Args, inv.Args) && slices.Equal(running.Flags, inv.Flags) {
		return o, true, err
	}
	var detached *DetachedError
	if errors.As(err, &detached) {
		return o, false, err
	}
	return Outcome{}, false, nil // how the other step ended is for its own caller
}

// start starts the unit; hostexec.ErrUnitExists when somebody else did so just
// before.
func start(ctx context.Context, env Env, inv Invocation) (Invocation, error) {
	if err := env.Record.Init(); err != nil {
		return inv, err
	}
	if info, err := env.Host.FS.Stat(inv.Log); err == nil {
		inv.Offset = info.Size()
	}
	data, err := json.Marshal(inv)
	if err != nil {
		return inv, err
	}
	if err := env.Host.Units.ResetFailed(ctx, UnitName); err != nil {
		return inv, err
	}
	return inv, env.Host.Units.StartTransient(ctx, hostexec.Transient{
		Name: UnitName, Description: "upgrader " + inv.Command + " (run " + inv.RunID + ")",
		Argv: inv.Argv, Log: inv.Log,
		Env: append(unitEnv(), InvocationEnv+"="+string(data)), StopGrace: stopGrace,
	})
}

// stopGrace is longer than kubeadm may take: it must not be killed half-way.
const stopGrace = 50 * time.Minute

// logFile is a run's log, in its record: one JSON object a line.
const logFile = "log.jsonl"

func unitEnv() []string {
	return []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"}
}

// ParseInvocation finds the invocation in a unit's environment.
func ParseInvocation(environ []string) (Invocation, error) {
	for _, kv := range environ {
		if data, ok := strings.CutPrefix(kv, InvocationEnv+"="); ok {
			var inv Invocation
			if err := json.Unmarshal([]byte(data), &inv); err != nil {
				return inv, fmt.Errorf("read what %s runs: %w", UnitName, err)
			}
			return inv, nil
		}
	}
	return Invocation{}, fmt.Errorf("%s was not started by the upgrader: it has no %s", UnitName, InvocationEnv)
}

// follow hands out the log until the unit is gone, and returns its outcome.
func follow(ctx context.Context, env Env, inv Invocation, emit func([]byte)) (Outcome, error) {
	tail := &tail{fs: env.Host.FS, path: inv.Log, offset: inv.Offset}
	for {
		unit, err := env.Host.Units.Show(ctx, UnitName)
		if ctx.Err() != nil {
			return Outcome{}, &DetachedError{Invocation: inv}
		}
		if err != nil {
			// The bus comes and goes with daemon-reexec; what counts is the outcome.
			env.Log.Debug("ask for the unit's state", "error", err.Error())
		}
		// The log is read after the state: a unit that was seen ended has
		// written all it ever will.
		if err := tail.emit(emit); err != nil {
			return Outcome{}, err
		}
		if err == nil && !stillRuns(unit, inv) {
			return awaitOutcome(ctx, env, inv)
		}
		if env.Clock.Sleep(ctx, 100*time.Millisecond) != nil {
			return Outcome{}, &DetachedError{Invocation: inv}
		}
	}
}

// stillRuns tells whether the unit still runs this invocation, and not a later one.
func stillRuns(unit hostexec.Unit, inv Invocation) bool {
	if !unit.Running() && unit.ActiveState != "deactivating" {
		return false
	}
	running, err := ParseInvocation(unit.Environment)
	return err != nil || running.ID == inv.ID
}
