package tables

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/node-upgrader/node-upgrader/hostexec"
	"github.com/node-upgrader/node-upgrader/steps"
	"github.com/node-upgrader/node-upgrader/test/skeleton"
)

// ground is where the nodes of a table are: one that was not upgraded yet, to be
// cloned, and what becomes of it when nothing disturbs its upgrade.
type ground struct {
	role       steps.Role
	dir, fresh string
	points     []point
	// start and end are the host's files before and after the upgrade. A file's
	// time counts where it is not younger than the fresh node.
	start, end skeleton.Tree
	before     map[string]skeleton.Tree // as each step found them
	made       time.Time
}

// point is one change of the undisturbed upgrade.
type point struct {
	step   string
	effect hostexec.Effect
	nth    int // the how many-th of its like, from 0
}

// String is a point's name in a table: which step, and what it does.
func (p point) String() string {
	name := p.effect.String()
	if name = strings.ReplaceAll(name, "/", "|"); p.nth > 0 {
		name += fmt.Sprintf(" (%d)", p.nth+1)
	}
	return p.step + " " + name
}

// sample counts points, and takes one of so many.
type sample struct{ seen int }

func (s *sample) takes() bool {
	s.seen++
	return s.seen%every == 0
}

func options() steps.Options {
	return steps.Options{RunID: "run", Drain: steps.DefaultDrain()}
}

// prepare makes the ground for nodes of a role.
func prepare(t *testing.T, role steps.Role) *ground {
	t.Helper()
	dir, err := skeleton.Scratch()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	etcd, err := skeleton.StartEtcd(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(etcd.Stop)
	g := &ground{role: role, dir: dir, fresh: filepath.Join(dir, "fresh"), before: map[string]skeleton.Tree{}}
	synctest.Test(t, func(t *testing.T) {
		_, err := skeleton.New(g.fresh, role, etcd.URL)
		must(t, err)
	})
	info, err := os.Stat(filepath.Join(g.fresh, "world.json"))
	must(t, err)
	g.made = info.ModTime()
	g.start = g.tree(t, g.fresh)
	undisturbed := g.clone(t, "undisturbed")
	r := &recorder{count: map[hostexec.Effect]int{}}
	synctest.Test(t, func(t *testing.T) {
		n, err := skeleton.Open(undisturbed, r)
		must(t, err)
		must(t, upgrade(t.Context(), n, options(), func(step string) {
			g.before[step] = g.tree(t, undisturbed)
			r.enter(step)
		}))
	})
	g.points, g.end = r.points, g.tree(t, undisturbed)
	return g
}

// clone is a fresh node in a directory of its own.
func (g *ground) clone(t *testing.T, name string) string {
	t.Helper()
	dir := filepath.Join(g.dir, strings.ReplaceAll(name, "/", "_"))
	must(t, skeleton.Clone(g.fresh, dir))
	return dir
}

// tree is the host's files but for those of the upgrader, for what kubeadm keeps
// for itself and never removes, and for etcd's data, which a rollback makes anew
// of the snapshot.
func (g *ground) tree(t *testing.T, dir string) skeleton.Tree {
	t.Helper()
	n, err := skeleton.Open(dir, nil)
	must(t, err)
	tree, err := n.TreeOf(g.made, steps.StateDir, "/etc/kubernetes/tmp", "/var/lib/etcd")
	must(t, err)
	return tree
}

// upgrade is `upgrader run`. enter, when not nil, is told which step is at work.
func upgrade(ctx context.Context, n *skeleton.Node, o steps.Options, enter func(step string)) error {
	env, err := n.Env(o)
	if err != nil {
		return err
	}
	plan := steps.Plan(o)
	if enter != nil {
		for i, step := range plan {
			plan[i].Run = func(ctx context.Context, env steps.Env) error {
				enter(step.Name)
				return step.Run(ctx, env)
			}
		}
	}
	runner := steps.Runner{Env: env, Plan: plan}
	if _, err := runner.Preflight(ctx); err != nil {
		return err
	}
	unlock, err := steps.Lock(ctx, env)
	if err != nil {
		return err
	}
	defer unlock()
	_, err = runner.Work(ctx)
	return err
}

// rollBack is `upgrader rollback` of the whole run, without its bundle.
func rollBack(ctx context.Context, n *skeleton.Node) error {
	o := options()
	o.RestoreEtcd = true
	env, err := n.Env(o)
	if err != nil {
		return err
	}
	env.Bundle = nil
	history, err := env.Record.Journal().History()
	if err != nil || history.Seq == 0 {
		return err // there is no such run: nothing was begun
	}
	unlock, err := steps.Lock(ctx, env)
	if err != nil {
		return err
	}
	defer unlock()
	_, err = steps.Runner{Env: env, Plan: steps.Plan(o)}.Rollback(ctx, "")
	return err
}

// boot is a power cut, and `upgrader recover` by the unit that is there for it.
func boot(ctx context.Context, n *skeleton.Node) error {
	if err := n.Crash(); err != nil {
		return err
	}
	env, err := n.Env(options())
	if err != nil {
		return err
	}
	return n.Boot(ctx, func(ctx context.Context) error {
		return steps.Recover(ctx, steps.Env{
			Host: hostexec.Host{FS: env.Host.FS}, Watch: env.Watch, Clock: env.Clock, Log: env.Log, Program: env.Program,
		})
	})
}

// asBefore is nil for a node that was rolled back.
func asBefore(n *skeleton.Node) error {
	containerd, kubelet, err := n.Running()
	if containerd != skeleton.OldContainerd || kubelet != skeleton.OldKubernetes {
		err = errors.Join(err, fmt.Errorf("containerd %q and kubelet %q run", containerd, kubelet))
	}
	cordoned, _, cordonErr := n.Cordoned()
	if cordoned {
		cordonErr = errors.Join(cordonErr, errors.New("the node is cordoned"))
	}
	return errors.Join(err, cordonErr, n.Works(), disarmed(n))
}

func disarmed(n *skeleton.Node) error {
	timers, err := n.Armed()
	if len(timers) > 0 {
		err = errors.Join(err, fmt.Errorf("armed: %v", timers))
	}
	return err
}

// upgraded is nil for a node on which everything is done and works.
func upgraded(ctx context.Context, n *skeleton.Node) error {
	env, err := n.Env(options())
	if err != nil {
		return err
	}
	report, err := steps.Runner{Env: env, Plan: steps.Plan(options())}.Look(ctx)
	if err == nil && !report.Done() {
		err = fmt.Errorf("not done: %+v", report)
	}
	cordoned, pods, lookErr := n.Cordoned()
	if cordoned || len(pods) > 0 {
		lookErr = errors.Join(lookErr, fmt.Errorf("cordoned: %t, pods: %v", cordoned, pods))
	}
	return errors.Join(err, lookErr, n.Works(), disarmed(n))
}

// recorder numbers the changes of an upgrade.
type recorder struct {
	mu     sync.Mutex
	step   string
	points []point
	count  map[hostexec.Effect]int
}

func (r *recorder) enter(step string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.step = step
}

func (r *recorder) Before(e hostexec.Effect) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.points = append(r.points, point{r.step, e, r.count[e]})
	r.count[e]++
	return nil
}

func (r *recorder) After(hostexec.Effect, error) {}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
