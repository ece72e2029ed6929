package tables

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/node-upgrader/node-upgrader/hostexec"
	"github.com/node-upgrader/node-upgrader/steps"
	"github.com/node-upgrader/node-upgrader/test/figures"
	"github.com/node-upgrader/node-upgrader/test/skeleton"
)

// fault is a way in which a change goes wrong.
type fault struct {
	name string
	err  error
	// lasts: from then on no change that takes room on a disk is possible.
	lasts bool
}

// faultsOf are the ways in which a change may go wrong.
func faultsOf(e hostexec.Effect) []fault {
	switch e.Op {
	case hostexec.OpStart, hostexec.OpStop, hostexec.OpDaemonReload, hostexec.OpResetFailed, hostexec.OpStartTransient:
		return []fault{
			{name: "job fails", err: &hostexec.JobError{Verb: e.Op, Unit: e.Object, Result: "failed"}},
			{name: "job hangs", err: skeleton.ErrHang},
		}
	case hostexec.OpRun, skeleton.OpAsk:
		if path.Base(e.Object) == "portmap" {
			return nil // a plugin that does not tell its version is replaced
		}
		return []fault{{name: "exits 1", err: skeleton.ErrExit}, {name: "hangs", err: skeleton.ErrHang}}
	case skeleton.OpKubeadm:
		return []fault{{name: "kubeadm fails there", err: errors.New("kubeadm: input/output error")}}
	case skeleton.OpPatch, skeleton.OpEvict:
		return []fault{{name: "API server fails", err: apierrors.NewInternalError(errors.New("etcdserver: request timed out"))}}
	}
	var faults []fault
	for _, errno := range []syscall.Errno{syscall.ENOSPC, syscall.EIO, syscall.EROFS, syscall.EPERM} {
		faults = append(faults, fault{name: unix.ErrnoName(errno), err: &os.PathError{Op: e.Op, Path: e.Object, Err: errno}})
	}
	if takesRoom(e) {
		faults = append(faults, fault{name: "ENOSPC from then on", err: &os.PathError{Op: e.Op, Path: e.Object, Err: syscall.ENOSPC}, lasts: true})
	}
	return faults
}

// takesRoom tells whether a full disk makes a change impossible.
func takesRoom(e hostexec.Effect) bool {
	switch e.Op {
	case hostexec.OpMkdir, hostexec.OpWrite, hostexec.OpAppend, hostexec.OpSymlink:
		return true
	}
	return false
}

// TestFaults lets each change of an upgrade go wrong in each way in which it
// can. The upgrader says so by the documented exit code and with a hint, and
// leaves a node that works; and when the fault is gone, the upgrade can be done.
func TestFaults(t *testing.T) {
	var points, held atomic.Int64
	var taken sample
	t.Run("at", func(t *testing.T) {
		for _, role := range []steps.Role{steps.ControlPlane, steps.Worker} {
			g := prepare(t, role)
			for i, p := range g.points {
				if role == steps.Worker && !slices.Contains([]string{"kubeadm", "kubelet"}, p.step) {
					continue // the same as on a control plane
				}
				for j, f := range faultsOf(p.effect) {
					if !taken.takes() {
						continue
					}
					t.Run(fmt.Sprintf("%s/%03d %s: %s", role, i+1, p, f.name), func(t *testing.T) {
						t.Parallel()
						points.Add(1)
						if g.tryFault(t, fmt.Sprintf("%03d-%d", i, j), p, f); !t.Failed() {
							held.Add(1)
						}
					})
				}
			}
		}
	})
	if every > 1 {
		return
	}
	fmt.Printf("fault_points=%d fault_held=%d\n", points.Load(), held.Load())
	must(t, figures.Put("crash",
		figures.AtLeast("fault_points", float64(points.Load()), "", fewest),
		figures.AtLeast("fault_held", float64(held.Load()), "", float64(points.Load()))))
}

func (g *ground) tryFault(t *testing.T, name string, p point, f fault) {
	dir := g.clone(t, name)
	t.Cleanup(func() { os.RemoveAll(dir) })
	i := &injector{fault: f, point: p}
	var failed error
	synctest.Test(t, func(t *testing.T) {
		n, err := skeleton.Open(dir, i)
		must(t, err)
		ctx, cancel := context.WithTimeoutCause(t.Context(), 24*time.Hour, errors.New("it hangs for ever"))
		defer cancel()
		failed = upgrade(ctx, n, options(), i.enter)
		if ctx.Err() != nil {
			t.Error("it would hang for ever")
		}
		i.mend()
		must(t, n.Works())
	})
	if !i.hit {
		t.Fatalf("the upgrade did not come there: %v", failed)
	}
	g.judge(t, f, failed, g.tree(t, dir))
	if t.Failed() {
		return
	}
	synctest.Test(t, func(t *testing.T) {
		n, err := skeleton.Open(dir, nil)
		must(t, err)
		err = upgrade(t.Context(), n, options(), nil)
		if steps.ExitCode(err) == steps.ExitBlocked && strings.Contains(fmt.Sprint(steps.Hints(err)), "--run-id") {
			o := options()
			o.RunID = "another"
			err = upgrade(t.Context(), n, o, nil)
		}
		if err != nil {
			t.Fatalf("after the fault (%v): %v; %q", failed, err, steps.Hints(err))
		}
		must(t, upgraded(t.Context(), n))
	})
	if diff := g.end.Diff(g.tree(t, dir)); diff != "" {
		t.Fatalf("after the fault (%v) not as after an undisturbed upgrade:\n%s", failed, diff)
	}
}

// judge compares what the exit code says with what is.
func (g *ground) judge(t *testing.T, f fault, err error, is skeleton.Tree) {
	t.Helper()
	code, step := steps.ExitCode(err), "the end"
	var failed *steps.StepError
	if errors.As(err, &failed) {
		step = failed.Step
	}
	if hints := steps.Hints(err); code != steps.ExitDone && len(hints) == 0 {
		t.Errorf("exit %d without a hint: %v", code, err)
	}
	want := []skeleton.Tree{g.end}
	switch code {
	case steps.ExitDone:
	case steps.ExitBlocked:
		want[0] = g.start
	case steps.ExitRolledBack:
		want[0] = g.before[step]
	case steps.ExitFailed: // what the step was to do is done, or nothing of it is
		if failed != nil {
			want = []skeleton.Tree{g.before[step], g.after(step)}
		}
	case steps.ExitIncomplete:
		// A control plane goes back by etcd's snapshot only, which was not asked
		// for; and what kubeadm has written in its place is put back by a copy,
		// which takes room.
		if step == "kubeadm" && (g.role == steps.ControlPlane || f.lasts) {
			return
		}
		fallthrough
	default:
		t.Errorf("exit %d: %v", code, err)
		return
	}
	if diff := unguarded(want[0]).Diff(unguarded(is)); diff != "" && unguarded(want[len(want)-1]).Diff(unguarded(is)) != "" {
		t.Errorf("exit %d in %s: %v, but:\n%s", code, step, err, diff)
	}
}

// after is the host as the step leaves it.
func (g *ground) after(step string) skeleton.Tree {
	names := steps.Names(steps.Plan(options()))
	if i := slices.Index(names, step); i+1 < len(names) {
		return g.before[names[i+1]]
	}
	return g.end
}

// unguarded is a tree without the recovery at boot, which is there as long as the
// run is open.
func unguarded(t skeleton.Tree) skeleton.Tree {
	t = maps.Clone(t)
	maps.DeleteFunc(t, func(path, _ string) bool { return strings.HasSuffix(path, "/"+steps.RecoveryUnit) })
	return t
}

// injector makes the fault at its point.
type injector struct {
	fault
	point
	hit, mended bool
	recorder
}

func (i *injector) Before(e hostexec.Effect) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.mended {
		return nil
	}
	if e == i.effect {
		if i.nth == 0 && !i.hit {
			i.hit = true
			return i.err
		}
		i.nth--
	}
	if i.hit && i.lasts && takesRoom(e) {
		return &os.PathError{Op: e.Op, Path: e.Object, Err: syscall.ENOSPC}
	}
	return nil
}

func (i *injector) mend() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.mended = true
}
