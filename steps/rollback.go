package steps

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// leaveError is a failure after which nothing is put back: it would not help.
type leaveError struct{ err error }

func (e *leaveError) Error() string { return e.err.Error() }
func (e *leaveError) Unwrap() error { return e.err }

// takeBack rolls back a step that failed after its first change of the host.
func takeBack(ctx context.Context, env Env, step Step, err error) error {
	var (
		back       *RolledBackError
		incomplete *RollbackError
		leave      *leaveError
	)
	switch {
	case errors.As(err, &incomplete): // the next call goes on with it
		return errors.Join(&HintError{Err: err, Hint: "finish the rollback: upgrader rollback --run-id " + env.Options.RunID},
			env.Record.Journal().Append(Entry{Event: EventUndo, Step: step.Name, Reason: err.Error()}))
	case errors.As(err, &back): // the step has done so itself
		return errors.Join(err, env.Record.Journal().Append(Entry{Event: EventUndone, Step: step.Name}))
	case errors.Is(ctx.Err(), context.Canceled): // told to stop: the next call goes on
		return err
	case env.Options.OnFailure == Stop, step.Undo == nil, errors.As(err, &leave):
		return err
	}
	history, unknown := env.Record.Journal().History()
	if unknown != nil {
		return errors.Join(err, unknown)
	}
	if !slices.Contains(history.Unfinished, step.Name) {
		return err
	}
	if blocks, unsure := undoBlocks(context.WithoutCancel(ctx), env, step); unsure != nil || len(blocks) > 0 {
		// Nothing is undone, so the run may still go forward.
		return &RollbackError{Err: err, Rollback: errors.Join(unsure, blockedBy(blocks))}
	}
	return undoStep(ctx, env, step, err)
}

// undoBlocks are the reasons for which the step cannot be undone now.
func undoBlocks(ctx context.Context, env Env, step Step) ([]Block, error) {
	if step.UndoBlocks == nil {
		return nil, nil
	}
	return step.UndoBlocks(ctx, env)
}

// undoStep puts back what a step has changed, after its failure because or, when
// that is nil, because it was asked for. It is not interrupted by the end of
// ctx: half undone is worse than either.
func undoStep(ctx context.Context, env Env, step Step, because error) error {
	journal := env.Record.Journal()
	begin := Entry{Event: EventUndo, Step: step.Name}
	if because != nil {
		begin.Reason = because.Error()
		env.Log.Error("rolling back", "step", step.Name, "reason", because.Error())
	} else {
		env.Log.Info("rolling back", "step", step.Name)
	}
	if err := guardBoot(ctx, env); err != nil {
		if because == nil {
			return err
		}
		env.Log.Warn("going on without the recovery at boot", "reason", err.Error())
	}
	if err := journal.Append(begin); err != nil && because == nil {
		return err
	}
	strict := journal.Lenient(func(err error) {
		env.Log.Warn("going on without the journal", "reason", err.Error())
	})
	defer strict()
	limited, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), step.Timeout+rollbackExtra, fmt.Errorf("no end after %s", step.Timeout+rollbackExtra))
	defer cancel()
	history, err := journal.History()
	if err == nil {
		err = errors.Join(step.Undo(limited, env), sweepKept(env, history.keptBy(step.Name)))
	}
	if err != nil {
		return &RollbackError{Err: because, Rollback: &HintError{
			Err:  fmt.Errorf("%s: %w", step.Name, err),
			Hint: "mend the cause, then finish the rollback: upgrader rollback --run-id " + env.Options.RunID,
		}}
	}
	if err := journal.Append(Entry{Event: EventUndone, Step: step.Name}); err != nil {
		return err
	}
	env.Log.Info("rolled back", "step", step.Name)
	if because == nil {
		return nil
	}
	return &RolledBackError{Err: because}
}

// rollbackExtra is how much longer than a step its rollback may take.
const rollbackExtra = 3 * time.Minute
