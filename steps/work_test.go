package steps

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/kubernetes"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

// writer makes a step that writes new into a file in which it found old, keeps
// the original, and then does what run says: "ok", "fails", "leaves" or
// "crashes". Its rollback does what undo says: "ok", "fails", "crashes".
func writer(name, run, undo string) Step {
	file := "/etc/" + name
	crash := func(how string) {
		if how == "crashes" {
			panic("killed")
		}
	}
	return Step{
		Name: name, Short: "write " + file, Timeout: time.Second,
		Check: func(_ context.Context, env Env) (State, error) {
			data, err := env.Host.FS.ReadFile(file)
			if string(data) == "new" {
				return State{Phase: Done}, err
			}
			return State{Phase: Needed}, err
		},
		Run: func(ctx context.Context, env Env) error {
			if run == "blocked" {
				return &BlockedError{Blocks: []Block{{Reason: "in the way"}}}
			}
			if err := backup(ctx, env, file); err != nil {
				return err
			}
			if err := env.Host.FS.WriteFile(ctx, file, []byte("new"), 0o600); err != nil {
				return err
			}
			crash(run)
			switch run {
			case "fails":
				return errors.New("no luck")
			case "leaves":
				return &leaveError{errors.New("no luck")}
			}
			return nil
		},
		Undo: func(ctx context.Context, env Env) error {
			crash(undo)
			if undo == "fails" {
				return errors.New("no way back")
			}
			return restore(ctx, env, file)
		},
	}
}

// writerNode is a host with one file for each step, and a runner of the run id.
type writerNode struct {
	t    *testing.T
	root string
	opts Options
}

func (n writerNode) runner(run string, plan ...Step) Runner {
	n.t.Helper()
	fs := hostexec.NewFS(n.root)
	for _, s := range plan {
		if there, _ := fs.Exists("/etc/" + s.Name); !there {
			must(n.t, fs.MkdirAll("/etc", 0o755))
			must(n.t, fs.WriteFile(n.t.Context(), "/etc/"+s.Name, []byte("old"), 0o600))
		}
	}
	o := n.opts
	o.RunID = run
	return Runner{Plan: plan, Env: Env{
		Host: hostexec.Host{FS: fs}, Record: NewRecord(fs, run), Clock: SystemClock(),
		Log: slog.New(slog.DiscardHandler), Options: o,
		Admin: noCluster, Kube: noCluster,
	}}
}

func noCluster(context.Context) (kubernetes.Interface, error) {
	return nil, errors.New("no cluster here")
}

// content is what lies in the steps' files, in order.
func (n writerNode) content(names ...string) string {
	n.t.Helper()
	var all []string
	for _, name := range names {
		data, err := hostexec.NewFS(n.root).ReadFile("/etc/" + name)
		must(n.t, err)
		all = append(all, string(data))
	}
	return strings.Join(all, " ")
}

// killed runs f, which is killed in its middle.
func killed(f func()) {
	defer func() { _ = recover() }()
	f()
}

// What follows when the second of two steps does not succeed.
func TestStepFails(t *testing.T) {
	for _, tc := range []struct {
		name, run, undo string
		onFailure       OnFailure
		exit            int
		content         string // of a and b
		closed          string
		text, hint      string
	}{
		{"rolled back", "fails", "ok", RollBack, ExitRolledBack, "new old", ClosedFailed, "no luck (rolled back)", ""},
		{"left as it is", "fails", "ok", Stop, ExitFailed, "new new", "", "no luck", ""},
		{"rollback would not help", "leaves", "ok", RollBack, ExitFailed, "new new", "", "no luck", ""},
		{"rollback fails too", "fails", "fails", RollBack, ExitIncomplete, "new new", "", "no luck; the rollback is incomplete: b: no way back", "upgrader rollback --run-id r"},
		{"refuses before its first change", "blocked", "fails", RollBack, ExitFailed, "new old", "", "in the way", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := writerNode{t: t, root: t.TempDir(), opts: Options{OnFailure: tc.onFailure}}
			r := n.runner("r", writer("a", "ok", "ok"), writer("b", tc.run, tc.undo))
			_, err := r.Work(t.Context())
			if ExitCode(err) != tc.exit || !strings.Contains(err.Error(), tc.text) || !strings.Contains(strings.Join(Hints(err), "\n"), tc.hint) {
				t.Errorf("exit %d: %v (%v)", ExitCode(err), err, Hints(err))
			}
			if diff := cmp.Diff(tc.content, n.content("a", "b")); diff != "" {
				t.Error(diff)
			}
			if h := mustHistory(t, r.Env.Record.Journal()); h.Closed != tc.closed || h.Open == (tc.closed != "") {
				t.Errorf("open %v, closed %q", h.Open, h.Closed)
			}
		})
	}
}

// A process that dies in a step, or in its rollback, is taken up by the next.
func TestWorkGoesOnAfterACrash(t *testing.T) {
	n := writerNode{t: t, root: t.TempDir()}
	killed(func() { _, _ = n.runner("r", writer("a", "crashes", "ok"), writer("b", "ok", "ok")).Work(t.Context()) })
	_, err := n.runner("r", writer("a", "ok", "ok"), writer("b", "ok", "ok")).Work(t.Context())
	must(t, err)
	if got := n.content("a", "b"); got != "new new" {
		t.Error(got)
	}
	if h := mustHistory(t, n.runner("r").Env.Record.Journal()); h.Open || h.Closed != ClosedDone {
		t.Errorf("open %v, closed %q", h.Open, h.Closed)
	}

	n = writerNode{t: t, root: t.TempDir()}
	killed(func() { _, _ = n.runner("r", writer("a", "fails", "crashes")).Work(t.Context()) })
	if got := n.content("a"); got != "new" {
		t.Fatal(got)
	}
	_, err = n.runner("r", writer("a", "ok", "ok")).Work(t.Context())
	if ExitCode(err) != ExitRolledBack || !strings.Contains(err.Error(), "no luck") || n.content("a") != "old" {
		t.Errorf("exit %d: %v, %s", ExitCode(err), err, n.content("a"))
	}
}

// One run at a time: another id, or another bundle under the same id, is refused
// by name until the open one has ended.
func TestOpenRunKeepsOthersOut(t *testing.T) {
	n := writerNode{t: t, root: t.TempDir()}
	one := n.runner("one", writer("a", "leaves", "ok"))
	one.Env.Record.Journal().Describe(Run{ID: "one", Bundle: "sha256:1", Kubernetes: "v1.36.3"}, time.Now)
	_, err := one.Work(t.Context())
	if ExitCode(err) != ExitFailed {
		t.Fatal(err)
	}
	two := n.runner("two", writer("b", "ok", "ok"))
	_, err = two.Work(t.Context())
	if ExitCode(err) != ExitBlocked || !strings.Contains(err.Error(), "run one is open: bundle sha256:1 (Kubernetes v1.36.3), step a") {
		t.Errorf("exit %d: %v", ExitCode(err), err)
	}
	if got := n.content("b"); got != "old" {
		t.Error(got)
	}
	results, err := n.runner("one", writer("a", "ok", "ok")).Abandon(t.Context())
	must(t, err)
	if len(results) != 1 || n.content("a") != "old" {
		t.Errorf("%+v, %s", results, n.content("a"))
	}
	_, err = two.Work(t.Context())
	must(t, err)
}

// What an open run has finished stays when it is abandoned.
func TestAbandonKeepsWhatIsDone(t *testing.T) {
	n := writerNode{t: t, root: t.TempDir()}
	plan := []Step{writer("a", "ok", "ok"), writer("b", "leaves", "ok")}
	_, err := n.runner("r", plan...).Work(t.Context())
	if ExitCode(err) != ExitFailed {
		t.Fatal(err)
	}
	_, err = n.runner("r", plan...).Abandon(t.Context())
	must(t, err)
	if got := n.content("a", "b"); got != "new old" {
		t.Error(got)
	}
	if h := mustHistory(t, n.runner("r").Env.Record.Journal()); h.Open || h.Closed != ClosedAbandoned {
		t.Errorf("open %v, closed %q", h.Open, h.Closed)
	}
}

// A rollback is of the whole run or down to a step, and goes on after a crash.
func TestRollback(t *testing.T) {
	names := []string{"a", "b", "c"}
	plan := func(undo string) []Step {
		return []Step{writer("a", "ok", "ok"), writer("b", "ok", undo), writer("c", "ok", "ok")}
	}
	done := func(t *testing.T) writerNode {
		t.Helper()
		n := writerNode{t: t, root: t.TempDir()}
		_, err := n.runner("r", plan("ok")...).Work(t.Context())
		must(t, err)
		return n
	}
	rollback := func(n writerNode, undo, to string) error {
		_, err := n.runner("r", plan(undo)...).Rollback(t.Context(), to)
		return err
	}
	t.Run("whole", func(t *testing.T) {
		n := done(t)
		must(t, rollback(n, "ok", ""))
		if got := n.content(names...); got != "old old old" {
			t.Error(got)
		}
		if h := mustHistory(t, n.runner("r").Env.Record.Journal()); h.Open || h.Closed != ClosedRolledBack {
			t.Errorf("open %v, closed %q", h.Open, h.Closed)
		}
		must(t, rollback(n, "fails", "")) // nothing is left to undo
	})
	t.Run("down to a step", func(t *testing.T) {
		n := done(t)
		must(t, rollback(n, "ok", "b"))
		if got := n.content(names...); got != "new old old" {
			t.Error(got)
		}
		must(t, rollback(n, "ok", ""))
		if got := n.content(names...); got != "old old old" {
			t.Error(got)
		}
	})
	t.Run("killed in its middle", func(t *testing.T) {
		n := done(t)
		killed(func() { _ = rollback(n, "crashes", "") })
		if got := n.content(names...); got != "new new old" {
			t.Fatal(got)
		}
		_, err := n.runner("r", plan("ok")...).Work(t.Context())
		if ExitCode(err) != ExitBlocked || !strings.Contains(err.Error(), "a rollback of run r was begun and is not complete: step b") {
			t.Errorf("an upgrade goes on: exit %d: %v", ExitCode(err), err)
		}
		must(t, rollback(n, "ok", ""))
		if got := n.content(names...); got != "old old old" {
			t.Error(got)
		}
	})
	t.Run("fails", func(t *testing.T) {
		n := done(t)
		err := rollback(n, "fails", "")
		if ExitCode(err) != ExitIncomplete || !strings.Contains(err.Error(), "b: no way back") || len(Hints(err)) == 0 {
			t.Errorf("exit %d: %v", ExitCode(err), err)
		}
	})
	t.Run("a backup is damaged", func(t *testing.T) {
		n := done(t)
		r := n.runner("r", plan("ok")...)
		must(t, r.Env.Host.FS.WriteFile(t.Context(), r.Env.Record.Path("backup/etc/b"), []byte("rot"), 0o600))
		err := rollback(n, "ok", "")
		if ExitCode(err) != ExitBlocked || !strings.Contains(err.Error(), "the backup of /etc/b is damaged") {
			t.Errorf("exit %d: %v", ExitCode(err), err)
		}
		if got := n.content(names...); got != "new new new" {
			t.Errorf("it was rolled back in part: %s", got)
		}
	})
	t.Run("a crash right after a file was kept anew", func(t *testing.T) {
		n := done(t)
		r := n.runner("r", plan("ok")...)
		for _, file := range []string{"/etc/b", r.Env.Record.Path("backup/etc/b")} {
			must(t, r.Env.Host.FS.WriteFile(t.Context(), file, []byte("later"), 0o600))
		}
		must(t, rollback(n, "ok", ""))
		if got := n.content(names...); got != "old later old" {
			t.Error(got)
		}
	})
	t.Run("a file was changed since", func(t *testing.T) {
		n := writerNode{t: t, root: t.TempDir()}
		knows := writer("a", "ok", "ok")
		knows.Run = func(ctx context.Context, env Env) error {
			if err := keepAs(ctx, env, Kept{Path: "/etc/a", Before: sum("old"), After: sum("new")}); err != nil {
				return err
			}
			return env.Host.FS.WriteFile(ctx, "/etc/a", []byte("new"), 0o600)
		}
		_, err := n.runner("one", knows).Work(t.Context())
		must(t, err)
		must(t, hostexec.NewFS(n.root).WriteFile(t.Context(), "/etc/a", []byte("newer"), 0o600))
		_, err = n.runner("one", knows).Rollback(t.Context(), "")
		if ExitCode(err) != ExitBlocked || !strings.Contains(err.Error(), "a: somebody else has changed /etc/a since") {
			t.Errorf("exit %d: %v", ExitCode(err), err)
		}
		_, err = n.runner("two", writer("a", "ok", "ok")).Work(t.Context())
		must(t, err)
		must(t, hostexec.NewFS(n.root).WriteFile(t.Context(), "/etc/a", []byte("newest"), 0o600))
		_, err = n.runner("one", knows).Rollback(t.Context(), "")
		if ExitCode(err) != ExitBlocked || !strings.Contains(strings.Join(Hints(err), ""), "upgrader rollback --run-id two") || n.content("a") != "newest" {
			t.Errorf("exit %d: %v (%v), %s", ExitCode(err), err, Hints(err), n.content("a"))
		}
	})
	t.Run("forbidden", func(t *testing.T) {
		n := done(t)
		p := plan("ok")
		p[0].UndoBlocks = func(context.Context, Env) ([]Block, error) {
			return []Block{{Reason: "there is no way back", Hint: "go on"}}, nil
		}
		_, err := n.runner("r", p...).Rollback(t.Context(), "")
		if ExitCode(err) != ExitBlocked || !strings.Contains(err.Error(), "a: there is no way back") || n.content(names...) != "new new new" {
			t.Errorf("exit %d: %v, %s", ExitCode(err), err, n.content(names...))
		}
	})
}

// The newest ended runs' records stay, an open one's always, and the bundles
// that are theirs.
func TestPrune(t *testing.T) {
	n := writerNode{t: t, root: t.TempDir(), opts: Options{KeepRuns: 2}}
	fs := hostexec.NewFS(n.root)
	run := func(id, how string) {
		must(t, fs.MkdirAll(Store+"/"+strings.TrimPrefix(id, "r"), 0o700))
		r := n.runner(id, writer(id, how, "ok"))
		r.Env.Record.Journal().Describe(Run{ID: id, Bundle: "sha256:" + strings.TrimPrefix(id, "r")}, time.Now)
		_, err := r.Work(t.Context())
		if (err != nil) != (how != "ok") {
			t.Fatal(err)
		}
	}
	for _, id := range []string{"r1", "r2", "r3"} {
		run(id, "ok")
	}
	run("r4", "fails")
	left := func(dir string) string {
		names, err := list(fs, dir)
		must(t, err)
		slices.Sort(names)
		return strings.Join(names, " ")
	}
	if got := left(runsDir) + ", " + left(Store); got != "r2 r3 r4, 2 3 4" {
		t.Error(got)
	}
}

// A step that cannot be undone once it has changed the node may still go
// forward: its failure does not leave a rollback behind that nobody can finish.
func TestFailureThatCannotBeUndone(t *testing.T) {
	n := writerNode{t: t, root: t.TempDir()}
	forbidden := func(s Step) Step {
		s.UndoBlocks = func(context.Context, Env) ([]Block, error) {
			return []Block{{Reason: "there is no way back", Hint: "go on"}}, nil
		}
		return s
	}
	_, err := n.runner("r", forbidden(writer("a", "fails", "ok"))).Work(t.Context())
	if ExitCode(err) != ExitIncomplete || !strings.Contains(err.Error(), "there is no way back") || !slices.Contains(Hints(err), "go on") {
		t.Fatalf("exit %d: %v (%v)", ExitCode(err), err, Hints(err))
	}
	if h := mustHistory(t, n.runner("r").Env.Record.Journal()); h.Undoing != "" || !h.Open {
		t.Errorf("%+v", h)
	}
	_, err = n.runner("r", forbidden(writer("a", "ok", "ok"))).Work(t.Context())
	must(t, err)
}

// A rollback that names no run is of the last one, and not of an older one when
// that has nothing to undo.
func TestLastRun(t *testing.T) {
	n := writerNode{t: t, root: t.TempDir()}
	fs := hostexec.NewFS(n.root)
	if _, err := LastRun(fs); ExitCode(err) != ExitBlocked {
		t.Errorf("without any: %v", err)
	}
	_, err := n.runner("good", writer("a", "ok", "ok")).Work(t.Context())
	must(t, err)
	if id, err := LastRun(fs); id != "good" || err != nil {
		t.Errorf("%q, %v", id, err)
	}
	if _, err := n.runner("bad", writer("b", "fails", "ok")).Work(t.Context()); ExitCode(err) != ExitRolledBack {
		t.Fatal(err)
	}
	id, err := LastRun(fs)
	if ExitCode(err) != ExitBlocked || !strings.Contains(err.Error(), "the last run, bad, has nothing left to undo") || !slices.Contains(Hints(err), "to undo an older run, name it: --run-id good") {
		t.Errorf("%q, %v (%v)", id, err, Hints(err))
	}
	if _, err := n.runner("open", writer("c", "leaves", "ok")).Work(t.Context()); err == nil {
		t.Fatal("it did not fail")
	}
	if id, err := LastRun(fs); id != "open" || err != nil {
		t.Errorf("%q, %v", id, err)
	}
}

// To stage the bundle again, after a boot say, takes nothing away from a run that
// has ended.
func TestStagingOpensNoRun(t *testing.T) {
	n := writerNode{t: t, root: t.TempDir()}
	_, err := n.runner("r", writer("a", "ok", "ok")).Work(t.Context())
	must(t, err)
	staged := false
	again := Step{
		Name: stepCopy, Short: "stage", Timeout: time.Second,
		Check: func(context.Context, Env) (State, error) {
			if staged {
				return State{Phase: Done}, nil
			}
			return State{Phase: Needed}, nil
		},
		Run: func(context.Context, Env) error { staged = true; return nil },
	}
	_, err = n.runner("r", again, writer("a", "ok", "ok")).Work(t.Context())
	must(t, err)
	if h := mustHistory(t, n.runner("r").Env.Record.Journal()); h.Open || len(h.Kept) != 1 {
		t.Errorf("open %v, kept %v", h.Open, h.Kept)
	}
}

// A rollback that is told to stop says what is left.
func TestRollbackIsStopped(t *testing.T) {
	n := writerNode{t: t, root: t.TempDir()}
	plan := []Step{writer("a", "ok", "ok"), writer("b", "ok", "ok")}
	_, err := n.runner("r", plan...).Work(t.Context())
	must(t, err)
	ctx, stop := context.WithCancel(t.Context())
	undo := plan[1].Undo
	plan[1].Undo = func(ctx context.Context, env Env) error { stop(); return undo(ctx, env) }
	_, err = n.runner("r", plan...).Rollback(ctx, "")
	if ExitCode(err) != ExitIncomplete || !strings.Contains(err.Error(), "stopped before a:") || n.content("a", "b") != "new old" {
		t.Errorf("exit %d: %v, %s", ExitCode(err), err, n.content("a", "b"))
	}
	_, err = n.runner("r", plan...).Rollback(t.Context(), "")
	must(t, err)
	if got := n.content("a", "b"); got != "old old" {
		t.Error(got)
	}
}

// What is to be typed after a rollback that failed too comes first, and nothing
// is lost or said twice.
func TestHints(t *testing.T) {
	hint := func(h string) error { return &HintError{Err: errors.New("x"), Hint: h} }
	err := &StepError{Err: &RollbackError{Err: hint("look"), Rollback: errors.Join(hint("finish"), hint("look"), &BlockedError{Blocks: []Block{{Hint: "move"}}})}}
	if diff := cmp.Diff([]string{"finish", "look", "move"}, Hints(err)); diff != "" {
		t.Error(diff)
	}
}
