package steps

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
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
	if s.first != nil {
		s.first(ctx)
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
			if now, old, minor := kubeletGoesBack(ctx, env, programs); minor {
				return fmt.Sprintf("the kubelet goes from %s to v%s on a drained node only", now, old), nil
			}
		}
	}
	return "", nil
}
