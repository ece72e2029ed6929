package steps

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

// runsDir has a directory for each run.
const runsDir = StateDir + "/runs"

// openBlocks are the reasons for which this run may not begin or go on: another
// one is open, or this one is another bundle's, or its rollback was begun and
// has to be finished first.
func openBlocks(ctx context.Context, env Env) ([]Block, error) {
	ids, err := list(env.Host.FS, runsDir)
	if err != nil {
		return nil, err
	}
	var blocks []Block
	for _, id := range ids {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		history, err := NewRecord(env.Host.FS, id).Journal().History()
		var damaged *BlockedError
		if errors.As(err, &damaged) {
			blocks = append(blocks, damaged.Blocks...)
			continue
		}
		if err != nil {
			return nil, err
		}
		if !history.Begun() {
			continue
		}
		own := id == env.Options.RunID
		switch {
		case !own:
			blocks = append(blocks, Block{
				Reason: fmt.Sprintf("run %s is open: bundle %s (Kubernetes %s), step %s", id, history.Run.Bundle, history.Run.Kubernetes, history.Step),
				Hint: fmt.Sprintf("finish it with its own bundle (--run-id %s), undo it (upgrader rollback --run-id %s), or take back what is half-done and close it (upgrader run --abandon)",
					id, id),
			})
		case env.Bundle != nil && history.Run.Bundle != "" && history.Run.Bundle != env.Bundle.Digest:
			blocks = append(blocks, Block{
				Reason: fmt.Sprintf("run %s is open for another bundle: %s, and this is %s", id, history.Run.Bundle, env.Bundle.Digest),
				Hint:   "give this upgrade another --run-id, after the open one has ended (upgrader status)",
			})
		case history.Undoing != "" && history.UndoReason == "":
			blocks = append(blocks, Block{
				Reason: fmt.Sprintf("a rollback of run %s was begun and is not complete: step %s", id, history.Undoing),
				Hint:   "finish it: upgrader rollback --run-id " + id,
			})
		}
	}
	return blocks, nil
}

// resume looks at what an earlier process of the same run has left, before
// anything is changed: the backups have to be what the journal says, and what
// was announced and never reported is told. A rollback that follows a failure
// and was cut short is completed.
//
// It is completed by whoever does the steps of the host: not from a container,
// and not by copy, which may be the first one to come by after a boot.
func (r Runner) resume(ctx context.Context, names []string) error {
	blocks, err := openBlocks(ctx, r.Env) // again, now under the lock
	if err != nil {
		return err
	}
	if len(blocks) > 0 {
		return &BlockedError{Blocks: blocks}
	}
	history, err := r.Env.Record.Journal().History()
	if err != nil || !history.Open {
		return err
	}
	for _, e := range history.Pending {
		r.Env.Log.Warn("cut short before its end was recorded", "change", e.Op+" "+e.Object, "at", e.Time)
	}
	if err := audit(ctx, r.Env, history); err != nil {
		return err
	}
	if !history.swapOpen() { // a crash may have left it armed
		if err := disarm(ctx, r.Env); err != nil {
			return err
		}
	}
	i := slices.IndexFunc(r.Plan, func(s Step) bool { return s.Name == history.Undoing && s.Undo != nil })
	onHost := slices.ContainsFunc(r.Plan, func(s Step) bool { return s.Undo != nil && slices.Contains(names, s.Name) })
	switch {
	case i < 0 || slices.Equal(names, []string{stepCopy}):
		return nil
	case !onHost:
		return &BlockedError{Blocks: []Block{{
			Reason: fmt.Sprintf("the rollback of step %s was cut short: %s", history.Undoing, history.UndoReason),
			Hint:   "finish it: upgrader rollback --run-id " + r.Env.Options.RunID,
		}}}
	}
	err = undoStep(ctx, r.Env, r.Plan[i], errors.New(history.UndoReason))
	return errors.Join(&StepError{Step: history.Undoing, Err: err}, r.fail(ctx, err))
}

// audit compares the journal with the disk: every original that may have to be
// put back is there and whole, and a file that is neither what it was nor what
// it was to become is told of.
func audit(ctx context.Context, env Env, history History) error {
	var blocks []Block
	for _, k := range history.Kept {
		if err := sound(ctx, env, k.Kept); err != nil {
			if ctx.Err() != nil {
				return err
			}
			blocks = append(blocks, Block{
				Reason: err.Error(),
				Hint:   fmt.Sprintf("the run cannot be rolled back: compare %s by hand, then move %s away and run the upgrader again", k.Path, env.Record.Path()),
			})
			continue
		}
		now, err := digestOrAbsent(ctx, env.Host.FS, k.Path)
		if err != nil {
			return err
		}
		if k.After != "" && now != k.Before && now != k.After {
			env.Log.Warn("somebody else has changed a file of this run", "file", k.Path, "sha256", now)
		}
	}
	if len(blocks) > 0 {
		return &BlockedError{Blocks: blocks}
	}
	return nil
}

// fail ends a run whose failed step is as it was before: the node is given back,
// and the next run may begin. A failure of another kind leaves it open.
func (r Runner) fail(ctx context.Context, err error) error {
	var back *RolledBackError
	var incomplete *RollbackError
	if !errors.As(err, &back) || errors.As(err, &incomplete) {
		return nil
	}
	history, unread := r.Env.Record.Journal().History()
	if unread != nil {
		return unread
	}
	if slices.Contains(history.Changed, stepDrain) {
		if left := giveBack(ctx, r.Env); left != nil {
			r.Env.Log.Warn(left.Error(), "do", strings.Join(Hints(left), "; "))
		}
	}
	return closeRun(context.WithoutCancel(ctx), r.Env, ClosedFailed)
}

// closeDone ends the run when each step of the plan is done: those that this
// run has no result of are looked at.
func (r Runner) closeDone(ctx context.Context) error {
	history, err := r.Env.Record.Journal().History()
	if err != nil || !history.Open {
		return err
	}
	for _, step := range r.Plan {
		if slices.ContainsFunc(history.Results, func(o Result) bool {
			return o.Step == step.Name && (o.Result == "done" || o.Result == "unchanged")
		}) {
			continue
		}
		if state, err := check(ctx, r.Env, step); err != nil || state.Phase != Done {
			return nil //nolint:nilerr // there is more to do, or it cannot be told: it stays open
		}
	}
	return closeRun(ctx, r.Env, ClosedDone)
}

// closeRun ends the run: nothing watches over it any more, its receipt is
// written, and the records of older runs go. Cut short, the run is still open,
// and the next call ends it.
func closeRun(ctx context.Context, env Env, how string) error {
	defer env.Record.Journal().Lenient(func(err error) {
		env.Log.Warn("the end of the run cannot be recorded", "reason", err.Error())
	})()
	if err := errors.Join(disarm(ctx, env), unguardBoot(env)); err != nil {
		return err
	}
	if env.Host.Units != nil { // it forgets the unit whose file is gone
		reloading, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("no answer within a minute"))
		if err := env.Host.Units.Reload(reloading); err != nil {
			env.Log.Warn("daemon-reload", "reason", err.Error())
		}
		cancel()
	}
	if err := saveReceipt(ctx, env, how); err != nil {
		env.Log.Warn("the receipt cannot be written", "reason", err.Error())
	}
	if err := env.Record.Journal().Append(Entry{Event: EventClose, Reason: how}); err != nil {
		return err
	}
	if how == ClosedDone {
		if err := prune(ctx, env); err != nil {
			env.Log.Warn("old runs cannot be removed", "reason", err.Error())
		}
	}
	return nil
}

// RunOf is the run that a bundle is for when none is named: the open one, if it is
// the bundle's, else one that is named after its digest.
func RunOf(host hostexec.FS, digest string) (string, error) {
	runs, err := allRuns(host)
	if err != nil {
		return "", err
	}
	for _, run := range runs {
		if run.Error == "" && run.Begun && run.Bundle == digest {
			return run.ID, nil
		}
	}
	return strings.TrimPrefix(digest, "sha256:")[:12], nil
}

// LastRun is the run that a rollback is about when none is named: the open one,
// else the one that ended last. Where that one has nothing left to undo, an older
// one is not undone in its place: it has to be named.
func LastRun(host hostexec.FS) (string, error) {
	ids, err := list(host, runsDir)
	if err != nil {
		return "", err
	}
	var last string
	var best History
	var older []string
	var damaged error
	for _, id := range ids {
		history, err := NewRecord(host, id).Journal().History()
		if err != nil {
			damaged = errors.Join(damaged, err)
			continue
		}
		if !history.Begun() && history.Closed == "" {
			continue // staged at most
		}
		if len(history.Changed)+len(history.Kept) > 0 {
			older = append(older, id)
		}
		if last == "" || history.Begun() && !best.Begun() || history.Begun() == best.Begun() && history.Ended.After(best.Ended) {
			last, best = id, history
		}
	}
	switch {
	case damaged != nil && !best.Begun():
		return "", fmt.Errorf("which run was the last? Name it with --run-id: %w", damaged)
	case last == "":
		return "", &BlockedError{Blocks: []Block{{Reason: "there is no run on this node that has changed anything", Hint: "upgrader status"}}}
	case len(best.Changed)+len(best.Kept) == 0 && !best.Begun():
		b := Block{Reason: fmt.Sprintf("the last run, %s, has nothing left to undo (%s)", last, best.Closed), Hint: "upgrader status"}
		if len(older) > 0 {
			b.Hint = "to undo an older run, name it: --run-id " + strings.Join(older, " or ")
		}
		return "", &BlockedError{Blocks: []Block{b}}
	}
	return last, nil
}

// bundleDir is where a bundle is staged, on the host.
func bundleDir(digest string) string {
	return path.Join(Store, strings.TrimPrefix(digest, "sha256:"))
}
