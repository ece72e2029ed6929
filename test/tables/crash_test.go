package tables

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/node-upgrader/node-upgrader/hostexec"
	"github.com/node-upgrader/node-upgrader/steps"
	"github.com/node-upgrader/node-upgrader/test/figures"
	"github.com/node-upgrader/node-upgrader/test/skeleton"
)

// fewest is how many points a crash table has to have to be worth its name.
const fewest = 150

// TestCrash kills the upgrader right before and right after each change that it
// makes. What the killed process has left is upgraded by another one, and ends
// as an upgrade that nothing has disturbed; a copy of it is rolled back, and ends
// as it began; and on another one the power is cut too: it boots into a node that
// works, and is upgraded.
func TestCrash(t *testing.T) {
	if crash := os.Getenv("TABLES_CRASH"); crash != "" {
		child(t, crash)
		return
	}
	tally := &tally{}
	t.Run("kill", func(t *testing.T) {
		for _, role := range []steps.Role{steps.ControlPlane, steps.Worker} {
			g := prepare(t, role)
			for i, p := range g.points {
				for _, after := range []bool{false, true} {
					if !crashes(p.effect) || after && isStaging(p) { // it is told of before only
						continue
					}
					when := map[bool]string{false: "before", true: "after"}[after]
					if !tally.takes() {
						continue
					}
					t.Run(fmt.Sprintf("%s/%03d %s %s", role, i+1, when, p), func(t *testing.T) {
						t.Parallel()
						g.crash(t, crashAt{Effect: p.effect, Nth: p.nth, After: after}, fmt.Sprintf("%03d-%s", i, when), tally)
					})
				}
			}
		}
	})
	tally.write(t)
}

// tally counts what became of the points.
type tally struct {
	points, converged, rolledBack, cuts, booted atomic.Int64
	sample
}

func (c *tally) write(t *testing.T) {
	if every > 1 {
		return
	}
	all := float64(c.points.Load())
	if all < fewest {
		t.Errorf("%v points, fewer than %d", all, fewest)
	}
	rows := []figures.Row{
		figures.AtLeast("crash_points", all, "", fewest),
		figures.AtLeast("crash_converged", float64(c.converged.Load()), "", all),
		figures.AtLeast("crash_rolled_back", float64(c.rolledBack.Load()), "", all),
		figures.AtLeast("crash_booted", float64(c.booted.Load()), "", float64(c.cuts.Load())),
	}
	for _, r := range rows {
		fmt.Printf("%s=%v\n", r.Name, r.Value)
	}
	must(t, figures.Put("crash", rows...))
}

// crash is one point: killed there, and then gone on in each way.
func (g *ground) crash(t *testing.T, c crashAt, name string, tally *tally) {
	tally.points.Add(1)
	again, back, booted := g.clone(t, name), filepath.Join(g.dir, name+"-back"), filepath.Join(g.dir, name+"-boot")
	t.Cleanup(func() {
		for _, dir := range []string{again, back, booted} {
			os.RemoveAll(dir)
		}
	})
	c.Dir = again
	kill(t, c)
	must(t, skeleton.Clone(again, back))
	if c.After { // right before the next one nothing else is on the disk
		tally.cuts.Add(1)
		must(t, skeleton.Clone(again, booted))
		if g.goOn(t, booted, "after a power cut", boot) {
			tally.booted.Add(1)
		}
	}
	if g.goOn(t, again, "run again", nil) {
		tally.converged.Add(1)
	}
	synctest.Test(t, func(t *testing.T) {
		n, err := skeleton.Open(back, nil)
		must(t, err)
		if err := rollBack(t.Context(), n); err != nil {
			t.Fatalf("rollback: %v; %q", err, steps.Hints(err))
		}
		must(t, asBefore(n))
	})
	if diff := g.start.Diff(g.tree(t, back)); diff != "" {
		t.Errorf("after the rollback not as at the start:\n%s", diff)
		return
	}
	if !t.Failed() {
		tally.rolledBack.Add(1)
	}
}

// goOn runs the upgrade again, and tells whether the node ends as one whose
// upgrade nothing has disturbed.
func (g *ground) goOn(t *testing.T, dir, how string, first func(context.Context, *skeleton.Node) error) bool {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		n, err := skeleton.Open(dir, nil)
		must(t, err)
		if first != nil {
			if err := errors.Join(first(t.Context(), n), n.Works()); err != nil {
				t.Fatalf("%s: %v", how, err)
			}
		}
		if err := upgrade(t.Context(), n, options(), nil); err != nil {
			t.Fatalf("%s: %v; %q", how, err, steps.Hints(err))
		}
		must(t, upgraded(t.Context(), n))
	})
	if diff := g.end.Diff(g.tree(t, dir)); diff != "" {
		t.Errorf("%s: not as after an undisturbed upgrade:\n%s", how, diff)
	}
	return !t.Failed()
}

// crashes tells whether the process is killed around a change: the journal's own
// lines are around each of the others.
func crashes(e hostexec.Effect) bool {
	return e.Op != skeleton.OpAsk && !strings.HasSuffix(e.Object, "/journal.jsonl")
}

func isStaging(p point) bool { return strings.HasPrefix(p.effect.Object, steps.Store+"/") }

// crashAt is what a child is to do, and where it is killed.
type crashAt struct {
	Dir    string
	Effect hostexec.Effect
	Nth    int
	After  bool
}

// kill lets a child upgrade a node until it is killed.
func kill(t *testing.T, c crashAt) {
	t.Helper()
	data, err := json.Marshal(c)
	must(t, err)
	cmd := exec.Command(os.Args[0], "-test.run=^TestCrash$", "-test.count=1")
	cmd.Env = append(os.Environ(), "TABLES_CRASH="+string(data))
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !errors.As(err, &exit) || !ok || status.Signal() != syscall.SIGKILL {
		t.Fatalf("the child was not killed: %v\n%s", err, out)
	}
}

// child is the process that is killed.
func child(t *testing.T, crash string) {
	var c crashAt
	must(t, json.Unmarshal([]byte(crash), &c))
	synctest.Test(t, func(t *testing.T) {
		n, err := skeleton.Open(c.Dir, &killer{crashAt: c})
		must(t, err)
		t.Fatalf("not killed: %v", upgrade(t.Context(), n, options(), nil))
	})
}

// killer kills its own process.
type killer struct {
	crashAt
	seen atomic.Int64
}

func (k *killer) Before(e hostexec.Effect) error {
	if e == k.Effect && int(k.seen.Add(1)) == k.Nth+1 && !k.crashAt.After {
		die()
	}
	return nil
}

func (k *killer) After(e hostexec.Effect, _ error) {
	if e == k.Effect && int(k.seen.Load()) == k.Nth+1 && k.crashAt.After {
		die()
	}
}

func die() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // it takes a moment
}
