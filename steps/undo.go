package steps

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"
)

// Rollback undoes what the run has changed, newest first, down to the step named
// to and that included; all of it when to is "". The services are stopped, their
// files put back, and they have to be healthy again. Where a step may only go
// back on a drained node, the node is drained first and given back afterwards.
//
// What forbids any of it is a *BlockedError before anything is done. A failure is
// a *RollbackError that says what is left. It can be repeated, after a crash too,
// until it has come to its end. The caller holds the node's Lock.
func (r Runner) Rollback(ctx context.Context, to string) ([]Result, error) {
	r.Env.Host = r.Env.Host.Watched(r.Env.watch())
	history, err := r.Env.Record.Journal().History()
	if err != nil {
		return nil, err
	}
	undo, err := r.toUndo(history, to)
	if err != nil {
		return nil, err
	}
	if len(undo) == 0 {
		r.Env.Log.Info("nothing to undo", "run", r.Env.Options.RunID)
		if err := giveBack(ctx, r.Env); err != nil {
			return nil, &RollbackError{Rollback: err}
		}
		return nil, r.closeUndone(ctx)
	}
	if err := r.mayUndo(ctx, history, undo); err != nil {
		return nil, err
	}
	if err := r.drainFirst(ctx, undo); err != nil {
		return nil, err
	}
	results, err := r.undoAll(ctx, undo)
	if err != nil {
		return results, err
	}
	if err := errors.Join(r.settle(ctx), giveBack(ctx, r.Env)); err != nil {
		return results, &RollbackError{Rollback: err}
	}
	return results, r.closeUndone(ctx)
}

// settle waits until the control plane is up: its pods may have been made again
// by what was restarted.
func (r Runner) settle(ctx context.Context) error {
	if r.Env.Node.Role != ControlPlane {
		return nil
	}
	pods, err := staticPods(r.Env.Host.FS)
	if err != nil {
		return err
	}
	return waitStaticPods(ctx, r.Env, pods)
}

// Abandon takes back what an open run has begun and not finished, and ends the
// run; what it has finished stays. Another run may begin then.
func (r Runner) Abandon(ctx context.Context) ([]Result, error) {
	r.Env.Host = r.Env.Host.Watched(r.Env.watch())
	history, err := r.Env.Record.Journal().History()
	if err != nil {
		return nil, err
	}
	var undo []Step
	for _, step := range slices.Backward(r.Plan) {
		if step.Undo != nil && (slices.Contains(history.Unfinished, step.Name) || history.Undoing == step.Name) {
			undo = append(undo, step)
		}
	}
	if err := r.mayUndo(ctx, history, undo); err != nil {
		return nil, err
	}
	results, err := r.undoAll(ctx, undo)
	if err != nil {
		return results, err
	}
	if err := giveBack(ctx, r.Env); err != nil {
		return results, &RollbackError{Rollback: err}
	}
	return results, closeRun(ctx, r.Env, ClosedAbandoned)
}

// toUndo are the steps to undo, newest first.
func (r Runner) toUndo(history History, to string) ([]Step, error) {
	if to != "" && !slices.Contains(Names(r.Plan), to) {
		return nil, &UsageError{fmt.Sprintf("no step %q; the steps are: %s", to, strings.Join(Names(r.Plan), ", "))}
	}
	var undo []Step
	for _, step := range slices.Backward(r.Plan) {
		touched := slices.Contains(history.Changed, step.Name) || history.Undoing == step.Name || len(history.keptBy(step.Name)) > 0
		if step.Undo != nil && touched {
			undo = append(undo, step)
		}
		if step.Name == to {
			break
		}
	}
	return undo, nil
}

// mayUndo refuses before anything is done: a rollback in part is none.
func (r Runner) mayUndo(ctx context.Context, history History, undo []Step) error {
	for _, e := range history.Pending {
		r.Env.Log.Warn("cut short before its end was recorded", "change", e.Op+" "+e.Object, "at", e.Time)
	}
	if err := audit(ctx, r.Env, history); err != nil {
		return err
	}
	blocks, err := changedSince(ctx, r.Env, history, undo)
	if err != nil {
		return err
	}
	for _, step := range undo {
		if step.UndoBlocks == nil {
			continue
		}
		more, err := step.UndoBlocks(ctx, r.Env)
		if err != nil {
			return fmt.Errorf("%s: %w", step.Name, err)
		}
		for _, b := range more {
			blocks = append(blocks, Block{Reason: step.Name + ": " + b.Reason, Hint: b.Hint})
		}
	}
	if len(blocks) > 0 {
		return &BlockedError{Blocks: blocks}
	}
	return nil
}

// changedSince blocks where a file of the steps is neither what it was before
// the run nor what the run has made of it: a later run, or somebody else, has
// gone on from there, and the original would be a step back of two.
func changedSince(ctx context.Context, env Env, history History, undo []Step) ([]Block, error) {
	runs, err := allRuns(env.Host.FS)
	if err != nil {
		return nil, err
	}
	var blocks []Block
	for _, step := range undo {
		for _, k := range history.keptBy(step.Name) {
			if later := laterRun(env, runs, history, k.Path); later != "" {
				blocks = append(blocks, Block{
					Reason: fmt.Sprintf("%s: run %s has changed %s since", step.Name, later, k.Path),
					Hint:   "roll that one back first: upgrader rollback --run-id " + later,
				})
				continue
			}
			if k.After == "" { // a component rewrites it now and then
				continue
			}
			now, err := digestOrAbsent(ctx, env.Host.FS, k.Path)
			if err != nil {
				return nil, err
			}
			if now == k.Before || now == k.After {
				continue
			}
			blocks = append(blocks, Block{
				Reason: fmt.Sprintf("%s: somebody else has changed %s since", step.Name, k.Path),
				Hint:   fmt.Sprintf("its original of this run is %s; put it back by hand if it is what you want", backupPath(env, k.Path)),
			})
		}
	}
	return blocks, nil
}

// laterRun is the newest run after this one that has an original of the path; ""
// without one.
func laterRun(env Env, runs []RunState, history History, path string) string {
	for _, run := range runs { // newest first
		if run.ID != env.Options.RunID && run.Ended.After(history.Ended) && NewRecord(env.Host.FS, run.ID).keeps(path) {
			return run.ID
		}
	}
	return ""
}

func (r Runner) undoAll(ctx context.Context, undo []Step) ([]Result, error) {
	var results []Result
	for i, step := range undo {
		if ctx.Err() != nil {
			return results, &RollbackError{Rollback: &HintError{
				Err:  fmt.Errorf("stopped before %s: %w", strings.Join(Names(undo[i:]), ", "), context.Cause(ctx)),
				Hint: "finish it: upgrader rollback --run-id " + r.Env.Options.RunID,
			}}
		}
		env := r.Env
		env.Log = env.Log.With("step", step.Name)
		result := Result{Step: step.Name, Result: "rolled back", Started: env.Clock.Now().UTC()}
		err := undoStep(ctx, env, step, nil)
		result.Seconds = env.Clock.Now().Sub(result.Started).Seconds()
		if err != nil {
			result.Result, result.Error = "failed", err.Error()
		}
		results = append(results, result)
		if err := errors.Join(err, keepResult(env, result)); err != nil {
			return results, err
		}
	}
	return results, nil
}

// closeUndone ends a run that has been rolled back.
func (r Runner) closeUndone(ctx context.Context) error {
	history, err := r.Env.Record.Journal().History()
	if err != nil || !history.Open {
		return err
	}
	for _, step := range r.Plan {
		if step.Undo != nil && slices.Contains(history.Changed, step.Name) {
			return closeRun(ctx, r.Env, ClosedInPart)
		}
	}
	return closeRun(ctx, r.Env, ClosedRolledBack)
}

// drainFirst drains the node where one of the steps may only go back on a
// drained one.
func (r Runner) drainFirst(ctx context.Context, undo []Step) error {
	why, err := needDrained(ctx, r.Env, undo)
	if err != nil || why == "" {
		return err
	}
	if r.Env.Options.NoDrain {
		r.Env.Log.Warn("not draining", "reason", why)
		return nil
	}
	client, err := r.reachAdmin(ctx, why)
	if err != nil {
		return err
	}
	r.Env.Log.Info("draining first", "reason", why)
	if _, err := (drainer{}).drain(ctx, r.Env, client); err != nil {
		back, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTime)
		defer cancel()
		return errors.Join(fmt.Errorf("drain before the rollback: %w", err), release(back, r.Env, client))
	}
	return nil
}

// giveBack takes the upgrader's cordon back, once the node may take pods. Where
// the cluster cannot be asked whether there is one, that is told and no error:
// it may be what is broken.
func giveBack(ctx context.Context, env Env) error {
	looking, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), 2*time.Minute, errors.New("not within two minutes"))
	defer cancel()
	node, err := ownNode(looking, env)
	if err != nil {
		env.Log.Warn("the node may still be cordoned by the upgrader", "reason", err.Error(), "do", "upgrader uncordon")
		return nil
	}
	if !ours(node) {
		return nil
	}
	client, err := env.Admin(looking)
	if err == nil {
		err = (uncordoner{}).settled(looking, env, client, nil)
	}
	if err == nil {
		err = release(looking, env, client)
	}
	if err != nil {
		return &HintError{
			Err:  fmt.Errorf("the node is still cordoned by the upgrader: %w", err),
			Hint: "upgrader uncordon, or kubectl uncordon " + env.Node.Name,
		}
	}
	env.Log.Info("uncordoned", "node", env.Node.Name)
	return nil
}

// reachAdmin is the API server with the rights to drain; where it cannot be
// reached nothing has been changed yet.
func (r Runner) reachAdmin(ctx context.Context, why string) (kubernetes.Interface, error) {
	client, err := r.Env.Admin(ctx)
	if err == nil {
		asking, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("no answer for a minute"))
		defer cancel()
		_, err = findNode(asking, r.Env, client)
	}
	if err == nil {
		return client, nil
	}
	b := noAdmin(err)
	return nil, &BlockedError{Blocks: []Block{{
		Reason: why + ", and it cannot be drained: " + err.Error(),
		Hint:   b.Hint + "; or, where the API server will not come back: --no-drain",
	}}}
}
