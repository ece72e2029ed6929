package steps

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

// Work works through the named steps of the plan, all without a name, skipping
// those that are done. It can be repeated at any time, and after any crash. The
// caller holds the node's Lock. The results are those of the steps that were
// reached. A step that fails after its first change of the host is rolled back
// (Options.OnFailure): *RolledBackError, or *RollbackError where that is not
// complete.
func (r Runner) Work(ctx context.Context, names ...string) ([]Result, error) {
	if len(names) == 0 {
		names = Names(r.Plan)
	}
	r.Env.Host = r.Env.Host.Watched(r.Env.watch())
	if err := r.resume(ctx, names); err != nil {
		return nil, err
	}
	var results []Result
	changed := false
	for i, step := range r.Plan {
		if !slices.Contains(names, step.Name) {
			continue
		}
		env := r.Env
		env.Log = env.Log.With("step", step.Name, "n", i+1, "of", len(r.Plan))
		result, err := r.runStep(ctx, env, step)
		results = append(results, result)
		err = errors.Join(err, keepResult(env, result))
		if err != nil {
			return results, errors.Join(&StepError{Step: step.Name, Err: err, Changed: changed}, r.fail(ctx, err))
		}
		changed = changed || result.Result == "done"
	}
	return results, r.closeDone(ctx)
}

// watch is told of every change of the host: the journal first.
func (e Env) watch() hostexec.Watch {
	if e.Watch == nil {
		return e.Record.Journal()
	}
	return watches{e.Record.Journal(), e.Watch}
}

// change makes a change that is none of the host's own files, units or
// commands: to the cluster, or to the bundles' store.
func (e Env) change(op, object string, change func() error) error {
	return hostexec.Change(e.watch(), hostexec.Effect{Op: op, Object: object}, change)
}

// watches tells several of each change; any of them may refuse.
type watches []hostexec.Watch

func (w watches) Before(e hostexec.Effect) error {
	for i, one := range w {
		if err := one.Before(e); err != nil {
			w[:i].After(e, err)
			return err
		}
	}
	return nil
}

func (w watches) After(e hostexec.Effect, err error) {
	for _, one := range slices.Backward(w) {
		one.After(e, err)
	}
}

// check is the step's Check, and one thing more: a swap is done only when it
// was recorded that the new service is healthy.
func check(ctx context.Context, env Env, step Step) (State, error) {
	state, err := step.Check(ctx, env)
	if err != nil || state.Phase != Done {
		return state, err
	}
	history, err := env.Record.Journal().History()
	if err != nil {
		return state, err
	}
	for unit, swap := range history.swaps {
		if swap.Open && swap.Step == step.Name {
			state.Phase = Needed
			state.Changes = append(state.Changes, Change{"confirm", "the new " + unit})
		}
	}
	return state, nil
}

// confirm records that the step's new service is healthy, where a crash came
// before that.
func confirm(ctx context.Context, env Env, step Step) error {
	history, err := env.Record.Journal().History()
	if err != nil {
		return err
	}
	for unit, swap := range history.swaps {
		if swap.Open && swap.Step == step.Name {
			s := swapped{step: step.Name, unit: unit}
			if err := errors.Join(s.save(env, swapRecord{Step: step.Name}), disarm(ctx, env)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r Runner) runStep(ctx context.Context, env Env, step Step) (result Result, err error) {
	start := env.Clock.Now()
	result = Result{Step: step.Name, Result: "failed", Started: start.UTC()}
	env.Log.Info(step.Short, "event", "start")
	defer func() {
		result.Seconds = env.Clock.Now().Sub(start).Seconds()
		if err != nil {
			result.Error = err.Error()
			env.Log.Error(result.Result, "event", "end", "seconds", result.Seconds)
			return
		}
		env.Log.Info(result.Result, "event", "end", "seconds", result.Seconds)
	}()
	limited, cancel := context.WithTimeoutCause(ctx, step.Timeout, fmt.Errorf("no end after %s", step.Timeout))
	defer cancel()
	result.Result, err = attempt(limited, env, step)
	if err != nil {
		err = takeBack(ctx, env, step, err)
	}
	return result, err
}

// attempt brings the step to Done; the answer is its result.
func attempt(ctx context.Context, env Env, step Step) (string, error) {
	state, err := step.Check(ctx, env)
	switch {
	case err != nil:
		// Whatever keeps us from knowing, Run may be what mends it, and it is
		// harmless where there is nothing to do.
		env.Log.Warn("state cannot be told, running the step", "reason", err.Error())
	case state.Phase == Blocked:
		return "blocked", &BlockedError{Blocks: state.Blocks}
	case state.Phase == Done:
		return "unchanged", confirm(ctx, env, step)
	}
	for _, f := range state.Facts {
		env.Log.Info("found", "what", f.Name, "have", f.Have, "want", f.Want)
	}
	if err := begin(env, step); err != nil {
		return "failed", err
	}
	if step.Undo != nil {
		if err := guardBoot(ctx, env); err != nil {
			return "failed", err
		}
	}
	if err := step.Run(ctx, env); err != nil {
		return "failed", err
	}
	if err := poll(ctx, env, 500*time.Millisecond, func(ctx context.Context) error {
		state, err := step.Check(ctx, env)
		if err != nil || state.Phase == Done {
			return err
		}
		return fmt.Errorf("still %s: %s", state.Phase, unmet(state))
	}); err != nil {
		return "failed", fmt.Errorf("wait until it shows: %w", err)
	}
	return "done", confirm(ctx, env, step)
}

// begin puts the step's beginning into the journal. To stage a bundle opens no
// run: it changes nothing of the host, and may be done long before or after.
func begin(env Env, step Step) error {
	if step.Name == stepCopy {
		history, err := env.Record.Journal().History()
		if err != nil || !history.Open {
			return err
		}
	}
	return env.Record.Journal().Append(Entry{Event: EventStep, Step: step.Name})
}

// keepResult puts a step's result into the journal of a run that has begun.
func keepResult(env Env, result Result) error {
	history, err := env.Record.Journal().History()
	if err != nil || !history.Open {
		return err
	}
	return env.Record.Journal().Append(Entry{Event: EventResult, Step: result.Step, Result: &result})
}
