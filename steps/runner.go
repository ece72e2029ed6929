package steps

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
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
	SignedBy   []string     `json:"signedBy,omitempty"` // of the keys that were demanded
	Versions   []Fact       `json:"versions"`
	Blocks     []Block      `json:"blocks,omitempty"`
	Steps      []StepReport `json:"steps"`
	// Open: the run has begun, and its end is not recorded.
	Open bool `json:"open"`
}

// StepReport is one step of a Report. Error is set when its state cannot be
// told now.
type StepReport struct {
	Name  string `json:"name"`
	Short string `json:"short"`
	State
	Error string `json:"error,omitempty"`
}

// Done tells whether there is nothing left to do, not even to end the run.
func (r Report) Done() bool {
	for _, s := range r.Steps {
		if s.Error != "" || s.Phase != Done {
			return false
		}
	}
	return len(r.Blocks) == 0 && len(r.Steps) > 0 && !r.Open
}

// Blocked returns all that stands against a start. What several steps say is
// said once, with all their names.
func (r Report) Blocked() []Block {
	blocks := slices.Clone(r.Blocks)
	var order []Block
	by := map[Block][]string{}
	for _, s := range r.Steps {
		for _, b := range s.Blocks {
			if by[b] == nil {
				order = append(order, b)
			}
			by[b] = append(by[b], s.Name)
		}
	}
	for _, b := range order {
		blocks = append(blocks, Block{Reason: strings.Join(slices.Compact(by[b]), ", ") + ": " + b.Reason, Hint: b.Hint})
	}
	return blocks
}

// Look checks the bundle's signature, where one is demanded, the versions and
// every step, and changes nothing. A step whose state cannot be told now is
// reported as such: an earlier step may be what mends it.
func (r Runner) Look(ctx context.Context) (Report, error) {
	report := Report{
		Schema: 1, Node: r.Env.Node, RunID: r.Env.Options.RunID,
		Bundle: r.Env.Bundle.Digest, Kubernetes: r.Env.Bundle.Manifest.KubernetesVersion,
	}
	var err error
	if report.SignedBy, err = CheckSignature(r.Env); err != nil {
		return report, err
	}
	if report.Blocks, report.Versions, err = Skew(ctx, r.Env); err != nil {
		return report, err
	}
	report.Blocks = append(report.Blocks, pressure(ctx, r.Env)...)
	open, err := openBlocks(ctx, r.Env)
	if err != nil {
		return report, err
	}
	report.Blocks = append(report.Blocks, open...)
	history, err := r.Env.Record.Journal().History()
	if err != nil {
		return report, err
	}
	report.Open = history.Open
	env := r.Env
	env.copyFirst = slices.Contains(Names(r.Plan), stepCopy)
	for _, step := range r.Plan {
		state, err := check(ctx, env, step)
		if ctx.Err() != nil {
			return report, context.Cause(ctx)
		}
		if untrusted(err) { // no step can mend it
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
