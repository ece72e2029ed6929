package steps

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/node-upgrader/node-upgrader/image"
)

// swap replaces the files of a service that has to be stopped for it: write all
// beside their places, arm the dead-man's switch, stop, rename, daemon-reload,
// prepare, start, and then healthy has to return nil before ctx ends. A full or
// read-only disk is found while the service still runs: the error is a plain one
// then. When any of it fails, the originals are put back and the service is
// started with them: the error is then a *RolledBackError, or a *RollbackError
// when that failed too; with OnFailure Stop all is left as it is. Where the
// bundle's files lay there before, there is nothing to go back to, and the error
// is a plain one. On no way out is the service left stopped while it could run.
// A crash leaves the swap open in the journal: the next attempt, the switch or
// the next boot brings it to an end.
func swap(ctx context.Context, env Env, s swapped) error {
	kept, err := s.load(env)
	if err != nil {
		return err
	}
	for _, f := range s.files {
		there, err := keepOriginal(ctx, env, f, kept.Open)
		if err != nil {
			return fmt.Errorf("keep the original of %s: %w", f.Dest, err)
		}
		if there {
			s.originals = append(s.originals, f.Dest)
		}
	}
	ready, err := prepare(ctx, env, s.files)
	defer ready.discard()
	if err != nil {
		return err
	}
	if err := s.save(env, swapRecord{Step: s.step, Open: true}); err != nil {
		return err
	}
	if err := arm(ctx, env, s.step); err != nil {
		return errors.Join(err, s.save(env, swapRecord{Step: s.step, Open: kept.Open}))
	}
	err = func() error {
		env.Log.Info("stopping", "unit", s.unit)
		if err := env.Host.Units.Stop(ctx, s.unit); err != nil {
			return err
		}
		if err := ready.commit(env); err != nil {
			return err
		}
		return s.start(ctx, env)
	}()
	// The caller's time may be what ran out.
	back, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Minute)
	defer cancel()
	if err == nil {
		return errors.Join(s.save(env, swapRecord{Step: s.step}), disarm(back, env))
	}
	if len(s.originals) == 0 {
		env.Log.Error("there is nothing to put back", "unit", s.unit, "reason", err.Error())
		// It was started, unless the failure came before.
		return errors.Join(err, env.Host.Units.Start(back, s.unit), s.save(env, swapRecord{Step: s.step}), disarm(back, env))
	}
	canceled := errors.Is(ctx.Err(), context.Canceled)
	if env.Options.OnFailure == Stop && !canceled {
		return s.stay(back, env, err)
	}
	return s.fail(back, env, err, canceled)
}

// stay leaves a failed swap as it is, for those who want to look at it.
func (s swapped) stay(ctx context.Context, env Env, err error) error {
	env.Log.Error("left as it is", "unit", s.unit, "reason", err.Error())
	return &HintError{
		Err:  errors.Join(err, env.Host.Units.Start(ctx, s.unit), disarm(ctx, env)),
		Hint: "look at it, then put the old files back: upgrader rollback " + s.step,
	}
}

// fail puts the old files back after err. canceled says nothing against the new
// ones.
func (s swapped) fail(ctx context.Context, env Env, err error, canceled bool) error {
	env.Log.Error("putting the old files back", "unit", s.unit, "reason", err.Error())
	undo := s.undo(ctx, env)
	// An incomplete rollback may be completed by the next attempt; one after
	// which the old service is well and containers are lost would lose more.
	var lost *lostError
	after := swapRecord{Step: s.step, Open: undo != nil && !errors.As(undo, &lost)}
	if (undo == nil || errors.As(undo, &lost)) && !canceled {
		after.Failed = &failedSwap{Reason: err.Error(), Time: env.Clock.Now().UTC()}
		for _, f := range s.files {
			after.Failed.SHA256s = append(after.Failed.SHA256s, f.SHA256)
		}
	}
	if err := s.save(env, after); err != nil {
		env.Log.Error("the attempt cannot be recorded", "unit", s.unit, "reason", err.Error())
	}
	if !after.Open {
		if err := disarm(ctx, env); err != nil { // it would find nothing to do
			env.Log.Warn("the dead-man's switch is still armed", "reason", err.Error())
		}
	}
	if undo != nil {
		return &RollbackError{Err: err, Rollback: undo}
	}
	return &RolledBackError{Err: err}
}

// swapRecord is where a swap stands, in the run's journal.
type swapRecord struct {
	Step string `json:"step"`
	// Open means that a swap has begun and neither succeeded nor was taken
	// back: what lies in backup are its originals.
	Open bool `json:"open"`
	// Failed is the last attempt, when it was taken back.
	Failed *failedSwap `json:"failed,omitempty"`
}

// failedSwap is an attempt that was taken back.
type failedSwap struct {
	SHA256s []string  `json:"sha256s"` // what was tried
	Reason  string    `json:"reason"`
	Time    time.Time `json:"time"`
}

// triedBefore blocks a swap of the unit that this run has tried with these very
// files and has taken back: without it, whoever starts a failed step again would
// stop the service again and again. It is for the step's Check.
func triedBefore(env Env, unit string) ([]Block, error) {
	kept, err := swapped{unit: unit}.load(env)
	if err != nil || kept.Failed == nil {
		return nil, err
	}
	for _, sha := range kept.Failed.SHA256s {
		if !slices.ContainsFunc(env.Bundle.Manifest.Files, func(f image.File) bool { return f.SHA256 == sha }) {
			return nil, nil
		}
	}
	return []Block{{
		Reason: fmt.Sprintf("%s: tried at %s and put back: %s", unit, kept.Failed.Time.Format(time.RFC3339), kept.Failed.Reason),
		Hint:   "mend the cause and run the upgrader with a new --run-id",
	}}, nil
}

func (s swapped) load(env Env) (swapRecord, error) {
	history, err := env.Record.Journal().History()
	return history.swaps[s.unit], err
}

func (s swapped) save(env Env, r swapRecord) error {
	return env.Record.Journal().Append(Entry{Event: EventSwap, Object: s.unit, Swap: &r})
}

// swapped is what swap needs to know of a service.
type swapped struct {
	step    string
	unit    string
	files   []placed
	first   func(context.Context)       // of a rollback: before the stop; may be nil
	prepare func(context.Context) error // right before the start; may be nil
	healthy func(context.Context) error // waits; called after the start
	// recovered waits until the old version is healthy after it was put back.
	recovered func(context.Context) error
	// originals are those of the files that there is something to put back for.
	originals []string
}

// start starts the service. A daemon-reload or a reset-failed that goes wrong
// does not keep it from coming up: the unit's own files are not ours and have
// not changed. It is told with the error when the service does not come up.
func (s swapped) start(ctx context.Context, env Env) error {
	var aside error
	try := func(what string, err error) {
		if err != nil {
			env.Log.Warn("starting all the same", "unit", s.unit, "reason", err.Error())
			aside = errors.Join(aside, fmt.Errorf("%s: %w", what, err))
		}
	}
	try("daemon-reload", env.Host.Units.Reload(ctx))
	if s.prepare != nil {
		if err := s.prepare(ctx); err != nil {
			return errors.Join(err, aside)
		}
	}
	try("reset-failed "+s.unit, env.Host.Units.ResetFailed(ctx, s.unit))
	env.Log.Info("starting", "unit", s.unit)
	err := env.Host.Units.Start(ctx, s.unit)
	if err == nil {
		err = s.healthy(ctx)
	}
	if err != nil {
		return errors.Join(err, aside)
	}
	return nil
}

// undo puts the old files back and starts the service with them. It is
// idempotent. A journal that cannot be written does not keep it from that.
func (s swapped) undo(ctx context.Context, env Env) error {
	defer env.Record.Journal().Lenient(func(err error) {
		env.Log.Warn("going on without the journal", "reason", err.Error())
	})()
	err := env.Host.Units.Stop(ctx, s.unit)
	for _, dest := range s.originals {
		err = errors.Join(err, restore(ctx, env, dest))
	}
	old := s
	old.healthy = s.recovered
	if s.prepare != nil {
		old.prepare = func(ctx context.Context) error {
			if err := s.prepare(ctx); err != nil { // no reason to leave it stopped
				env.Log.Error("starting all the same", "unit", s.unit, "reason", err.Error())
			}
			return nil
		}
	}
	return errors.Join(err, old.start(ctx, env))
}
