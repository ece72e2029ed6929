package steps

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

// script makes a step from words: what Check says before Run ("needed",
// "done", "blocked", "unknown") and what Run does ("ok", "fails", "nothing",
// "rolls-back", "hangs").
func script(name, check, run string) Step {
	ran := false
	return Step{
		Name: name, Short: "do " + name, Timeout: 50 * time.Millisecond,
		Check: func(context.Context, Env) (State, error) {
			switch {
			case ran && (run == "ok"):
				return State{Phase: Done}, nil
			case check == "unknown":
				return State{}, errors.New("the API server is away")
			case check == "blocked":
				return State{Phase: Blocked, Blocks: []Block{{Reason: name + " is in the way", Hint: "move " + name}}}, nil
			}
			return State{Phase: Phase(check), Facts: []Fact{{name, "old", "new"}}}, nil
		},
		Run: func(ctx context.Context, _ Env) error {
			ran = true
			switch run {
			case "fails":
				return errors.New("no luck")
			case "rolls-back":
				return &RolledBackError{Err: errors.New("no luck")}
			case "hangs":
				<-ctx.Done()
				return context.Cause(ctx)
			}
			return nil
		},
	}
}

func TestRunner(t *testing.T) {
	for _, tc := range []struct {
		name  string
		steps string // name:check:run …
		want  string // step=result …
		exit  int
		text  string // in the error
	}{
		{"all needed", "a:needed:ok b:needed:ok", "a=done b=done", ExitDone, ""},
		{"all done", "a:done:fails b:done:fails", "a=unchanged b=unchanged", ExitDone, ""},
		{"resumed in the middle", "a:done:fails b:needed:ok", "a=unchanged b=done", ExitDone, ""},
		{"blocked before anything", "a:needed:ok b:blocked:ok c:blocked:ok", "", ExitBlocked, "b: b is in the way; c: c is in the way"},
		{"fails", "a:needed:fails b:needed:ok", "a=failed", ExitFailed, "a: no luck"},
		{"rolled back", "a:needed:ok b:needed:rolls-back", "a=done b=failed", ExitRolledBack, "rolled back"},
		{"runs but does not show", "a:needed:nothing", "a=failed", ExitFailed, "a is old, not new"},
		{"hangs", "a:needed:hangs", "a=failed", ExitFailed, "no end after 50ms"},
		{"state unknown: run it", "a:unknown:ok", "a=done", ExitDone, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var plan []Step
			for _, s := range strings.Fields(tc.steps) {
				w := strings.Split(s, ":")
				plan = append(plan, script(w[0], w[1], w[2]))
			}
			fs := hostexec.NewFS(t.TempDir())
			env := Env{Host: hostexec.Host{FS: fs}, Record: NewRecord(fs, "r"), Clock: SystemClock(), Log: slog.New(slog.DiscardHandler)}
			results, err := work(t, Runner{Env: env, Plan: plan})
			var got []string
			for _, r := range results {
				got = append(got, r.Step+"="+r.Result)
			}
			history, unread := env.Record.Journal().History()
			if unread != nil {
				t.Fatal(unread)
			}
			var kept []string
			for _, r := range history.Results {
				kept = append(kept, r.Step+"="+r.Result)
			}
			if len(kept) > 0 && !strings.HasSuffix(strings.Join(got, " "), strings.Join(kept, " ")) {
				t.Errorf("the journal has %v, done was %v", kept, got)
			}
			if diff := cmp.Diff(tc.want, strings.Join(got, " ")); diff != "" {
				t.Errorf("results (-want +got):\n%s", diff)
			}
			if ExitCode(err) != tc.exit || err != nil && !strings.Contains(err.Error(), tc.text) {
				t.Errorf("exit %d, want %d: %v", ExitCode(err), tc.exit, err)
			}
		})
	}
}

// work is Run without the look at the versions, which needs a whole node.
func work(t *testing.T, r Runner) ([]Result, error) {
	t.Helper()
	report := Report{}
	for _, s := range r.Plan {
		state, err := s.Check(t.Context(), r.Env)
		if err == nil {
			report.Steps = append(report.Steps, StepReport{Name: s.Name, State: state})
		}
	}
	if blocks := report.Blocked(); len(blocks) > 0 {
		return nil, &BlockedError{Blocks: blocks}
	}
	return r.Work(t.Context())
}

// A step that becomes blocked after another has changed the node is no "nothing
// was changed".
func TestBlockedLateIsAFailure(t *testing.T) {
	first := script("a", "needed", "ok")
	late := script("b", "blocked", "ok")
	fs := hostexec.NewFS(t.TempDir())
	env := Env{Host: hostexec.Host{FS: fs}, Record: NewRecord(fs, "r"), Clock: SystemClock(), Log: slog.New(slog.DiscardHandler)}
	_, err := Runner{Env: env, Plan: []Step{first, late}}.Work(t.Context())
	if ExitCode(err) != ExitFailed {
		t.Errorf("exit %d: %v", ExitCode(err), err)
	}
	_, err = Runner{Env: env, Plan: []Step{late}}.Work(t.Context())
	if ExitCode(err) != ExitBlocked || strings.Join(Hints(err), "") != "move b" {
		t.Errorf("exit %d: %v", ExitCode(err), err)
	}
}

func TestExitCodes(t *testing.T) {
	cause := errors.New("x")
	for _, tc := range []struct {
		err  error
		want int
	}{
		{nil, 0},
		{cause, 1},
		{&HintError{Err: cause}, 1},
		{&UsageError{}, 2},
		{&StepError{Err: &BlockedError{}}, 3},
		{&StepError{Err: &RolledBackError{Err: &BlockedError{}}}, 4},
		{&StepError{Err: &RollbackError{Err: &RolledBackError{Err: cause}, Rollback: cause}}, 5},
		{&OutcomeError{Outcome: Outcome{Exit: 4}}, 4},
	} {
		if got := ExitCode(tc.err); got != tc.want {
			t.Errorf("%v: exit %d, want %d", tc.err, got, tc.want)
		}
	}
}

// A look at nothing is no proof: it must never read as "nothing to do".
func TestReportOfNothingIsNotDone(t *testing.T) {
	done := StepReport{Name: "a", State: State{Phase: Done}}
	for _, tc := range []struct {
		name   string
		report Report
		want   bool
	}{
		{"no steps", Report{}, false},
		{"all done", Report{Steps: []StepReport{done, done}}, true},
		{"one needed", Report{Steps: []StepReport{done, {State: State{Phase: Needed}}}}, false},
		{"one unknown", Report{Steps: []StepReport{{State: State{Phase: Done}, Error: "away"}}}, false},
		{"versions block", Report{Steps: []StepReport{done}, Blocks: []Block{{Reason: "skew"}}}, false},
	} {
		if got := tc.report.Done(); got != tc.want {
			t.Errorf("%s: done is %v, want %v", tc.name, got, tc.want)
		}
	}
}

func TestOnly(t *testing.T) {
	plan := []Step{script("a", "done", "ok"), script("b", "done", "ok"), script("c", "done", "ok")}
	for names, want := range map[string]string{"": "a b c", "b": "b", "c a": "a c"} {
		got, err := Only(plan, strings.Fields(names))
		if err != nil || strings.Join(Names(got), " ") != want {
			t.Errorf("%q: %v, %v, want %s", names, Names(got), err, want)
		}
	}
	if _, err := Only(plan, []string{"z"}); ExitCode(err) != ExitUsage {
		t.Errorf("a step that is not there: %v", err)
	}
}
