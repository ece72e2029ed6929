package steps

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/semver"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

// keptPrograms are the paths of the programs that the step has replaced, and
// keptData those of the other files that it keeps.
func keptPrograms(env Env, step string) (programs, data []string, err error) {
	history, err := env.Record.Journal().History()
	for _, k := range history.keptBy(step) {
		if k.Linked {
			programs = append(programs, k.Path)
		} else {
			data = append(data, k.Path)
		}
	}
	return programs, data, err
}

// altered are those of the paths that are not their originals now.
func altered(ctx context.Context, env Env, paths []string) ([]string, error) {
	history, err := env.Record.Journal().History()
	if err != nil {
		return nil, err
	}
	var other []string
	for _, p := range paths {
		now, err := digestOrAbsent(ctx, env.Host.FS, p)
		if err != nil {
			return nil, err
		}
		if k, there := history.kept(p); there && k.Before != now {
			other = append(other, p)
		}
	}
	return other, nil
}

// replaces tells whether one of the programs has this name.
func replaces(programs []string, names ...string) bool {
	return slices.ContainsFunc(programs, func(p string) bool { return slices.Contains(names, path.Base(p)) })
}

// mustRestart tells whether the unit has to be stopped for the rollback: its swap
// is open, or one of the named programs is not its original.
func mustRestart(ctx context.Context, env Env, unit string, programs []string, names ...string) (bool, error) {
	history, err := env.Record.Journal().History()
	if err != nil || history.swaps[unit].Open {
		return true, err
	}
	other, err := altered(ctx, env, programs)
	return replaces(other, names...), err
}

// restoreAll puts files back that need no service to be stopped.
func restoreAll(ctx context.Context, env Env, paths []string) error {
	var err error
	for _, p := range paths {
		err = errors.Join(err, restore(ctx, env, p))
	}
	return err
}

// takeBackSwap is undo with all that makes it outlive a crash: the journal, and
// the dead-man's switch.
func takeBackSwap(ctx context.Context, env Env, s swapped) error {
	if err := s.save(env, swapRecord{Step: s.step, Open: true}); err != nil {
		return err
	}
	if err := arm(ctx, env, s.step); err != nil {
		env.Log.Warn("going on without the dead-man's switch", "reason", err.Error())
	}
	undo := s.undo(ctx, env)
	var lost *lostError
	if undo == nil || errors.As(undo, &lost) {
		undo = errors.Join(undo, s.save(env, swapRecord{Step: s.step}), disarm(ctx, env))
	}
	return undo
}

// undoCNIPlugins puts the plugins back; nothing has to be restarted for it.
func undoCNIPlugins(ctx context.Context, env Env) error {
	programs, _, err := keptPrograms(env, stepCNIPlugins)
	if err != nil {
		return err
	}
	return restoreAll(ctx, env, programs)
}

// undoContainerd puts containerd, its shim, ctr and runc back. One before 2.0
// does not find the shims that a later one has started: their pods are stopped
// and removed first, the kubelet being stopped, which makes them again
// afterwards.
func undoContainerd(ctx context.Context, env Env) (err error) {
	programs, _, err := keptPrograms(env, stepContainerd)
	if err != nil || len(programs) == 0 {
		return err
	}
	if restart, err := mustRestart(ctx, env, containerdUnit, programs, "containerd", "containerd-shim-runc-v2"); err != nil || !restart {
		return errors.Join(err, restoreAll(ctx, env, programs))
	}
	l, err := lookForUndo(ctx, env)
	if err != nil {
		return err
	}
	unknown, err := shimsUnknownTo(env, l, keptVersion(ctx, env, l.daemon.binary))
	if err != nil {
		env.Log.Error("shims cannot be compared", "reason", err.Error())
	}
	if len(unknown) > 0 {
		defer func() { err = errors.Join(err, startKubelet(ctx, env)) }()
		if err := emptyNode(ctx, env); err != nil {
			env.Log.Error("pods cannot be removed", "reason", err.Error())
		}
	}
	return takeBackSwap(ctx, env, swapped{
		step: stepContainerd, unit: containerdUnit, originals: programs,
		prepare: func(ctx context.Context) error {
			losses, err := preventLosses(ctx, env, l.stateDir())
			if err == nil && len(losses) > 0 {
				err = fmt.Errorf("containerd would throw away: %s", describeLosses(losses))
			}
			return err
		},
		recovered: func(ctx context.Context) error {
			if err := waitForContainerd(ctx, env, ""); err != nil {
				return err
			}
			left, err := shimsUnknownTo(env, l, keptVersion(ctx, env, l.daemon.binary))
			if err == nil && len(left) > 0 {
				return &lostError{left}
			}
			return err
		},
	})
}

// lookForUndo is what a rollback has to know of containerd.
func lookForUndo(ctx context.Context, env Env) (l containerdLook, err error) {
	if l.daemon, err = findContainerd(ctx, env.Host); err != nil {
		return l, err
	}
	if l.config, err = installedConfig(ctx, env.Host, l.daemon); err != nil {
		// The program that it was asked of may be what is broken.
		env.Log.Warn("containerd's configuration cannot be asked for", "reason", err.Error())
	}
	return l, nil
}

// keptVersion is what the original of a program says of itself; "" when it does
// not, or was not there.
func keptVersion(ctx context.Context, env Env, program string) string {
	out, err := env.Host.Commands.Run(ctx, hostexec.Command{Argv: []string{backupPath(env, program), "--version"}})
	if err != nil {
		return ""
	}
	for _, word := range strings.Fields(string(out.Stdout)) {
		if semver.IsValid(semverOf(word)) {
			return strings.TrimPrefix(word, "v")
		}
	}
	return ""
}

// emptyNode stops the kubelet and removes the pods that run.
func emptyNode(ctx context.Context, env Env) error {
	env.Log.Info("stopping", "unit", kubeletUnit)
	if err := env.Host.Units.Stop(ctx, kubeletUnit); err != nil {
		return err
	}
	client, err := env.Runtime(ctx)
	if err != nil {
		return err
	}
	defer client.Close()
	running, err := client.Containers(ctx)
	if err != nil {
		return err
	}
	for _, c := range running {
		if !c.Sandbox {
			continue
		}
		env.Log.Info("removing, for the kubelet to make it again", "pod", c.Namespace+"/"+c.Pod)
		if gone := env.change("remove-pod", c.Namespace+"/"+c.Pod, func() error {
			return client.RemovePod(ctx, c.Namespace, c.Pod)
		}); gone != nil {
			err = errors.Join(err, gone)
		}
	}
	return err
}

// startKubelet starts the kubelet, also when the caller's time is up.
func startKubelet(ctx context.Context, env Env) error {
	starting, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	env.Log.Info("starting", "unit", kubeletUnit)
	return env.Host.Units.Start(starting, kubeletUnit)
}

// undoKubelet puts the kubelet, kubectl and what the kubelet remembers back.
func undoKubelet(ctx context.Context, env Env) error {
	programs, state, err := keptPrograms(env, stepKubelet)
	if err != nil || len(programs) == 0 {
		return err
	}
	if restart, err := mustRestart(ctx, env, kubeletUnit, programs, "kubelet"); err != nil || !restart {
		return errors.Join(err, restoreAll(ctx, env, programs))
	}
	return takeBackSwap(ctx, env, swapped{
		step: stepKubelet, unit: kubeletUnit, originals: programs,
		prepare:   func(ctx context.Context) error { return restoreAll(ctx, env, state) },
		recovered: func(ctx context.Context) error { return kubeletAnswersAgain(ctx, env) },
	})
}

// kubeletAnswersAgain waits until the kubelet that lies there runs and is
// healthy. The API server is not asked: it may be what is broken.
func kubeletAnswersAgain(ctx context.Context, env Env) error {
	return poll(ctx, env, 500*time.Millisecond, func(ctx context.Context) error {
		unit, err := env.Host.Units.Show(ctx, kubeletUnit)
		if err != nil {
			return err
		}
		if unit.MainPID == 0 {
			return fmt.Errorf("%s is %s", kubeletUnit, unit.ActiveState)
		}
		args, err := unitArgs(env.Host.FS, unit, nil)
		if err != nil {
			return err
		}
		return probeHealthz(ctx, env, args)
	})
}

// needDrained is why the node has to be drained for the steps to go back; ""
// when it need not.
func needDrained(ctx context.Context, env Env, undo []Step) (string, error) {
	for _, step := range undo {
		programs, _, err := keptPrograms(env, step.Name)
		if err != nil {
			return "", err
		}
		i := slices.IndexFunc(programs, func(p string) bool { return path.Base(p) == step.Name })
		if i < 0 {
			continue
		}
		switch step.Name {
		case stepContainerd:
			l, err := lookForUndo(ctx, env)
			if err != nil {
				return "", err
			}
			old := keptVersion(ctx, env, programs[i])
			unknown, err := shimsUnknownTo(env, l, old)
			if err != nil {
				return "", err
			}
			if len(unknown) > 0 {
				return fmt.Sprintf("containerd %s does not know %d containers that a later one has started, and their pods have to be made again", old, len(unknown)), nil
			}
		case stepKubelet:
			out, err := env.Host.Commands.Run(ctx, hostexec.Command{Argv: []string{programs[i], "--version"}})
			if err != nil {
				continue // one that does not even start has taken no pods over
			}
			now := strings.TrimSpace(strings.TrimPrefix(string(out.Stdout), "Kubernetes "))
			old := keptVersion(ctx, env, programs[i])
			a, err1 := version.ParseGeneric(now)
			b, err2 := version.ParseGeneric(old)
			if err1 == nil && err2 == nil && (a.Major() != b.Major() || a.Minor() != b.Minor()) {
				return fmt.Sprintf("the kubelet goes from %s to v%s on a drained node only", now, old), nil
			}
		}
	}
	return "", nil
}
