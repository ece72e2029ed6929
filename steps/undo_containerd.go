package steps

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/mod/semver"
)

// undoContainerd puts containerd, its shim, ctr and runc back. One before 2.0
// does not find the shims that a later one has started: their pods are stopped
// and removed first, the kubelet being stopped, which makes them again
// afterwards.
func undoContainerd(ctx context.Context, env Env) (err error) {
	programs, _, err := keptPrograms(env, stepContainerd)
	if err != nil || len(programs) == 0 {
		return err
	}
	// An attempt that was cut short may have left it stopped.
	defer func() { err = errors.Join(err, startKubelet(ctx, env)) }()
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
	return takeBackSwap(ctx, env, swapped{
		step: stepContainerd, unit: containerdUnit, originals: programs,
		first: func(ctx context.Context) {
			if len(unknown) == 0 {
				return
			}
			if err := emptyNode(ctx, env); err != nil {
				env.Log.Error("pods cannot be removed", "reason", err.Error())
			}
		},
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
	out, err := ask(ctx, env.Host, backupPath(env, program), "--version")
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

// startKubelet starts the kubelet where it does not run, also when the caller's
// time is up.
func startKubelet(ctx context.Context, env Env) error {
	starting, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	unit, err := env.Host.Units.Show(starting, kubeletUnit)
	if err != nil || unit.Running() || !unit.Exists() {
		return err
	}
	env.Log.Info("starting", "unit", kubeletUnit)
	return env.Host.Units.Start(starting, kubeletUnit)
}
