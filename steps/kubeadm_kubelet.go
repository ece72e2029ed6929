package steps

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// kubeletReads are the files of kubeadm's that the kubelet reads at its start.
func kubeletReads() []string {
	return []string{kubeletConfig, kubeletFlagsFile, kubeletConf}
}

// restartKubelet starts the kubelet anew, with whatever program and files lie
// there, and waits until it is well.
func restartKubelet(ctx context.Context, env Env) error {
	env.Log.Info("restarting", "unit", kubeletUnit)
	if err := env.Host.Units.Stop(ctx, kubeletUnit); err != nil {
		return errors.Join(err, startToWork(ctx, env))
	}
	return startToWork(ctx, env)
}

// startToWork starts the kubelet where it does not run, and waits until it is
// well.
func startToWork(ctx context.Context, env Env) error {
	if err := env.Host.Units.ResetFailed(ctx, kubeletUnit); err != nil {
		env.Log.Warn("starting all the same", "unit", kubeletUnit, "reason", err.Error())
	}
	if err := env.Host.Units.Start(ctx, kubeletUnit); err != nil {
		return err
	}
	return awaitKubelet(ctx, env)
}

// awaitKubelet waits until the kubelet answers and has done so for a while with
// one process. The API server is not asked: it may be what the kubelet is to
// start.
func awaitKubelet(ctx context.Context, env Env) error {
	var pid int
	var since time.Time
	err := within(ctx, env, kubeletComesUp, 500*time.Millisecond, func(ctx context.Context) error {
		unit, err := env.Host.Units.Show(ctx, kubeletUnit)
		if err != nil {
			return err
		}
		if unit.MainPID == 0 {
			since = time.Time{}
			return fmt.Errorf("%s is %s", kubeletUnit, unit.ActiveState)
		}
		args, err := unitArgs(env.Host.FS, unit, nil)
		if err == nil {
			err = probeHealthz(ctx, env, args)
		}
		if err != nil {
			since = time.Time{}
			return err
		}
		now := env.Clock.Now()
		if since.IsZero() || unit.MainPID != pid {
			since, pid = now, unit.MainPID
		}
		if left := kubeletSettles - now.Sub(since); left > 0 {
			return fmt.Errorf("healthy, watching it for another %s", left.Round(time.Millisecond))
		}
		return nil
	})
	if err != nil {
		return &HintError{Err: fmt.Errorf("wait for the kubelet: %w", err), Hint: "journalctl --unit kubelet"}
	}
	return nil
}
