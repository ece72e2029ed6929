package steps

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/version"
)

// undoKubelet puts the kubelet, kubectl and what the kubelet remembers back.
func undoKubelet(ctx context.Context, env Env) error {
	programs, state, err := keptPrograms(env, stepKubelet)
	if err != nil || len(programs) == 0 {
		return err
	}
	if restart, err := mustRestart(ctx, env, kubeletUnit, programs, "kubelet"); err != nil || !restart {
		return errors.Join(err, restoreAll(ctx, env, programs))
	}
	if state, err = stateToRestore(ctx, env, programs, state); err != nil {
		return err
	}
	return takeBackSwap(ctx, env, swapped{
		step: stepKubelet, unit: kubeletUnit, originals: programs,
		prepare:   func(ctx context.Context) error { return restoreAll(ctx, env, state) },
		recovered: func(ctx context.Context) error { return kubeletAnswersAgain(ctx, env) },
	})
}

// stateToRestore are those of the kept files that the kubelet remembers by, where
// they are to come back with it: when its upgrade did not come to an end, and
// when the minor version goes back, which writes them in another format; the node
// is drained then. After a while within one minor version they are better as
// they are. What the kubelet is configured with is not the kubelet step's.
func stateToRestore(ctx context.Context, env Env, programs, kept []string) ([]string, error) {
	history, err := env.Record.Journal().History()
	if err != nil {
		return nil, err
	}
	if !history.swaps[kubeletUnit].Open && !slices.Contains(history.Unfinished, stepKubelet) {
		_, _, minor := kubeletGoesBack(ctx, env, programs)
		if !minor {
			return nil, nil
		}
	}
	return slices.DeleteFunc(slices.Clone(kept), func(p string) bool { return !slices.Contains(kubeletStateFiles(), path.Base(p)) }), nil
}

// kubeletGoesBack is the version of the kubelet that lies there and that of its
// original, and whether the minor versions differ. One that does not even start
// has taken no pods over, and written nothing.
func kubeletGoesBack(ctx context.Context, env Env, programs []string) (now, old string, minor bool) {
	i := slices.IndexFunc(programs, func(p string) bool { return path.Base(p) == "kubelet" })
	if i < 0 {
		return "", "", false
	}
	out, err := ask(ctx, env.Host, programs[i], "--version")
	if err != nil {
		return "", "", false
	}
	now = strings.TrimSpace(strings.TrimPrefix(string(out.Stdout), "Kubernetes "))
	old = keptVersion(ctx, env, programs[i])
	a, err1 := version.ParseGeneric(now)
	b, err2 := version.ParseGeneric(old)
	return now, old, err1 == nil && err2 == nil && (a.Major() != b.Major() || a.Minor() != b.Minor())
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
