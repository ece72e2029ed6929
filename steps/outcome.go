package steps

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Outcome is how an invocation ended, written by the unit's process itself as
// its last act, or by the dead-man's switch that has killed it.
type Outcome struct {
	ID      string   `json:"id"`
	Exit    int      `json:"exit"`
	Error   string   `json:"error,omitempty"`
	Hints   []string `json:"hints,omitempty"`
	Results []Result `json:"results,omitempty"`
	// PeakMiB is the most memory that the process ever held, without the
	// programs that it ran.
	PeakMiB float64 `json:"peakMiB,omitempty"`
}

// NewOutcome is the end of a process that has come to err.
func NewOutcome(err error, results []Result) Outcome {
	o := Outcome{Exit: ExitCode(err), Hints: Hints(err), Results: results}
	if err != nil {
		o.Error = err.Error()
	}
	return o
}

// Err is nil for an invocation that ended well.
func (o Outcome) Err() error {
	if o.Exit == ExitDone {
		return nil
	}
	return &OutcomeError{Outcome: o}
}

// OutcomeError is the failure of the unit's process, told by its caller.
type OutcomeError struct{ Outcome Outcome }

func (e *OutcomeError) Error() string { return e.Outcome.Error }

// Conclude writes the invocation's outcome; it is the last thing that the
// unit's process does, or the dead-man's switch in its place. The outcome is kept under the invocation's id, for its
// callers: another invocation may start before they have looked; and as the
// run's last.
func Conclude(ctx context.Context, r Record, o Outcome) error {
	return errors.Join(r.Save(ctx, "outcome-"+o.ID, o), r.Save(ctx, "outcome", o))
}

// awaitOutcome reads the outcome of a unit that is gone. One that was killed has
// left none; where the dead-man's switch did that, it is still putting back what
// was swapped, and says how that ended.
func awaitOutcome(ctx context.Context, env Env, inv Invocation) (Outcome, error) {
	for {
		unit, unknown := env.Host.Units.Show(ctx, deadManService)
		// Read after the state: a switch that was seen ended has said all it will.
		var o Outcome
		switch there, err := env.Record.Load("outcome-"+inv.ID, &o); {
		case there || err != nil:
			return o, err
		case ctx.Err() != nil:
			return o, &DetachedError{Invocation: inv}
		case unknown == nil && !unit.Running() && unit.ActiveState != "deactivating":
			return o, &HintError{
				Err:  fmt.Errorf("%s ended without an outcome: it was killed", UnitName),
				Hint: "run the same command again: each step can be repeated (log: " + inv.Log + ")",
			}
		}
		if env.Clock.Sleep(ctx, 200*time.Millisecond) != nil {
			return o, &DetachedError{Invocation: inv}
		}
	}
}
