package steps

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/node-upgrader/node-upgrader/image"
)

// Runner works through the steps on one node.
type Runner struct {
	Env  Env
	Plan []Step
}

// Report is what a look at the node found: the answer of `upgrader plan` and of
// `upgrader verify`.
type Report struct {
	Schema     int          `json:"schema"`
	Node       Node         `json:"node"`
	RunID      string       `json:"runID"`
	Bundle     string       `json:"bundle"`
	Kubernetes string       `json:"kubernetes"`
	Versions   []Fact       `json:"versions"`
	Blocks     []Block      `json:"blocks,omitempty"`
	Steps      []StepReport `json:"steps"`
}

// StepReport is one step of a Report. Error is set when its state cannot be
// told now.
type StepReport struct {
	Name  string `json:"name"`
	Short string `json:"short"`
	State
	Error string `json:"error,omitempty"`
}

// Done tells whether there is nothing left to do.
func (r Report) Done() bool {
	for _, s := range r.Steps {
		if s.Error != "" || s.Phase != Done {
			return false
		}
	}
	return len(r.Blocks) == 0 && len(r.Steps) > 0
}

// Blocked returns all that stands against a start.
func (r Report) Blocked() []Block {
	blocks := r.Blocks
	for _, s := range r.Steps {
		for _, b := range s.Blocks {
			blocks = append(blocks, Block{Reason: s.Name + ": " + b.Reason, Hint: b.Hint})
		}
	}
	return blocks
}

// Look checks the versions and every step, and changes nothing. A step whose
// state cannot be told now is reported as such: an earlier step may be what
// mends it.
func (r Runner) Look(ctx context.Context) (Report, error) {
	report := Report{
		Schema: 1, Node: r.Env.Node, RunID: r.Env.Options.RunID,
		Bundle: r.Env.Bundle.Digest, Kubernetes: r.Env.Bundle.Manifest.KubernetesVersion,
	}
	var err error
	if report.Blocks, report.Versions, err = Skew(ctx, r.Env); err != nil {
		return report, err
	}
	report.Blocks = append(report.Blocks, pressure(ctx, r.Env)...)
	for _, step := range r.Plan {
		state, err := step.Check(ctx, r.Env)
		if ctx.Err() != nil {
			return report, context.Cause(ctx)
		}
		var bad *image.BadBundleError
		if errors.As(err, &bad) { // no step can mend it
			return report, fmt.Errorf("%s: %w", step.Name, err)
		}
		sr := StepReport{Name: step.Name, Short: step.Short, State: state}
		if err != nil {
			sr.Error = err.Error()
		}
		report.Steps = append(report.Steps, sr)
	}
	return report, nil
}

// Result is what a step did, kept in the run's record.
type Result struct {
	Step    string    `json:"step"`
	Result  string    `json:"result"` // done, unchanged, failed, blocked
	Error   string    `json:"error,omitempty"`
	Started time.Time `json:"started"`
	Seconds float64   `json:"seconds"`
}

// Run is Preflight and Work.
func (r Runner) Run(ctx context.Context, names ...string) ([]Result, error) {
	if len(names) == 0 {
		names = Names(r.Plan)
	}
	if _, err := r.Preflight(ctx, names...); err != nil {
		return nil, err
	}
	return r.Work(ctx, names...)
}

// Work works through the named steps of the plan, all without a name, skipping
// those that are done. It can be repeated at any time. The results are those
// of the steps that were reached.
func (r Runner) Work(ctx context.Context, names ...string) ([]Result, error) {
	if len(names) == 0 {
		names = Names(r.Plan)
	}
	var results []Result
	changed := false
	for i, step := range r.Plan {
		if !slices.Contains(names, step.Name) {
			continue
		}
		env := r.Env
		env.Log = env.Log.With("step", step.Name, "n", i+1, "of", len(r.Plan))
		result, err := runStep(ctx, env, step)
		results = append(results, result)
		err = errors.Join(err, keep(context.WithoutCancel(ctx), env.Record, result))
		if err != nil {
			return results, &StepError{Step: step.Name, Err: err, Changed: changed}
		}
		changed = changed || result.Result == "done"
	}
	return results, nil
}

// Preflight looks, and refuses with everything that blocks, before anything is
// changed. The first step of a plan looks at all of them; a later one at the
// versions and at itself, since the state of those after it may depend on it.
func (r Runner) Preflight(ctx context.Context, names ...string) (Report, error) {
	look := r
	if len(names) > 0 && !slices.Contains(names, r.Plan[0].Name) {
		var err error
		if look.Plan, err = Only(r.Plan, names); err != nil {
			return Report{}, err
		}
	}
	report, err := look.Look(ctx)
	if err != nil {
		return report, err
	}
	if blocks := report.Blocked(); len(blocks) > 0 {
		return report, &BlockedError{Blocks: blocks}
	}
	return report, nil
}

// keep keeps a step's result. That it was found unchanged does not replace how
// it was done, but it does replace a failure.
func keep(ctx context.Context, record Record, result Result) error {
	if result.Result == "unchanged" {
		var before Result
		there, err := record.Load("step-"+result.Step, &before)
		if err != nil || !there || before.Result == "done" || before.Result == "unchanged" {
			return err
		}
	}
	return record.Save(ctx, "step-"+result.Step, result)
}

// Unchanged are the results of the steps of a report that found all of them
// done.
func (r Runner) Unchanged(report Report) []Result {
	var results []Result
	for _, s := range report.Steps {
		results = append(results, Result{Step: s.Name, Result: "unchanged", Started: r.Env.Clock.Now().UTC()})
		r.Env.Log.Info("unchanged: it is at the target", "step", s.Name)
	}
	return results
}

// StepError says which step failed. Changed tells that earlier steps of the
// same call have changed the node, so that a step that was blocked does not
// mean an unchanged node.
type StepError struct {
	Step    string
	Err     error
	Changed bool
}

func (e *StepError) Error() string { return e.Step + ": " + e.Err.Error() }
func (e *StepError) Unwrap() error { return e.Err }

func runStep(ctx context.Context, env Env, step Step) (result Result, err error) {
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
	ctx, cancel := context.WithTimeoutCause(ctx, step.Timeout, fmt.Errorf("no end after %s", step.Timeout))
	defer cancel()

	state, err := step.Check(ctx, env)
	switch {
	case err != nil:
		// Whatever keeps us from knowing, Run may be what mends it, and it is
		// harmless where there is nothing to do.
		env.Log.Warn("state cannot be told, running the step", "reason", err.Error())
	case state.Phase == Blocked:
		result.Result = "blocked"
		return result, &BlockedError{Blocks: state.Blocks}
	case state.Phase == Done:
		result.Result = "unchanged"
		return result, nil
	}
	for _, f := range state.Facts {
		env.Log.Info("found", "what", f.Name, "have", f.Have, "want", f.Want)
	}
	if err := step.Run(ctx, env); err != nil {
		return result, err
	}
	if err := poll(ctx, env, 500*time.Millisecond, func(ctx context.Context) error {
		state, err := step.Check(ctx, env)
		if err != nil || state.Phase == Done {
			return err
		}
		return fmt.Errorf("still %s: %s", state.Phase, unmet(state))
	}); err != nil {
		return result, fmt.Errorf("wait until it shows: %w", err)
	}
	result.Result = "done"
	return result, nil
}

// unmet names what is not as it should be.
func unmet(s State) string {
	var parts []string
	for _, f := range s.Facts {
		if f.Want != "" && f.Have != f.Want {
			parts = append(parts, fmt.Sprintf("%s is %s, not %s", f.Name, f.Have, f.Want))
		}
	}
	for _, b := range s.Blocks {
		parts = append(parts, b.Reason)
	}
	return strings.Join(parts, ", ")
}
