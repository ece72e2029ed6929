package steps

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

// DeadManTimer is the dead-man's switch: a timer of systemd that is armed before
// a service is stopped for the swap of its files, and disarmed when the new one
// is healthy or the old one is back. When it fires, its service puts the old
// files back, whatever became of the upgrader: it needs systemd and the run's
// backup, and neither pod nor API server nor containerd.
const DeadManTimer = "upgrader-deadman.timer"

// deadManService is what the timer starts.
const deadManService = "upgrader-deadman.service"

// arm starts the switch anew for a step. It is on the host by then, or an error
// is returned and nothing may be stopped.
func arm(ctx context.Context, env Env, step string) error {
	if env.Program == "" {
		return nil // a test's host, which has none
	}
	after := env.Options.DeadMan
	switch {
	case after < 0: // this is the switch's own work
		return nil
	case after == 0:
		after = DefaultDeadMan
	}
	argv := []string{env.Program, "rollback", "--dead-man", "--run-id=" + env.Options.RunID, step, "--output=json"}
	if env.Node.Role != "" { // it is not to be found out when nothing may work
		argv = append(argv, "--role="+string(env.Node.Role))
	}
	err := env.Host.Units.StartTransientTimer(ctx, hostexec.Timer{
		Name: DeadManTimer, After: after,
		Service: hostexec.Transient{
			Description: fmt.Sprintf("upgrader's dead-man's switch: put %s back (run %s)", step, env.Options.RunID),
			Argv:        argv,
			Env:         unitEnv(),
			Log:         env.Record.Path(logFile), StopGrace: stopGrace,
		},
	})
	if err != nil {
		return &HintError{
			Err:  fmt.Errorf("arm the dead-man's switch: %w", err),
			Hint: "systemctl status " + DeadManTimer + "; nothing was stopped",
		}
	}
	env.Log.Debug("armed the dead-man's switch", "timer", DeadManTimer, "after", after.String())
	return nil
}

// disarm stops the switch; one that is not armed is no error.
func disarm(ctx context.Context, env Env) error {
	if env.Program == "" {
		return nil
	}
	if err := env.Host.Units.StopTransient(ctx, DeadManTimer); err != nil {
		return fmt.Errorf("disarm the dead-man's switch: %w", err)
	}
	return nil
}

// DeadMan is what the switch does when it fires: it ends the upgrader's unit,
// which did not prove the new service healthy in its time, and puts back what
// the step has begun to swap. Where that has come to its end meanwhile, nothing
// is done.
func (r Runner) DeadMan(ctx context.Context, name string) error {
	steps, err := Only(r.Plan, []string{name})
	if err != nil {
		return err
	}
	// Looked at before anybody is killed, and again when nobody else works.
	if open, err := r.swapOpen(name); err != nil || !open {
		r.Env.Log.Info("nothing to put back: the swap has come to its end", "step", name)
		return err
	}
	ended, err := endUnit(ctx, r.Env)
	if err != nil {
		return err
	}
	unlock, err := r.lockAtLast(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	r.Env.Host, r.Env.Options.DeadMan = r.Env.Host.Watched(r.Env.watch()), -1
	history, err := r.Env.Record.Journal().History()
	if err != nil {
		return err
	}
	for unit, swap := range history.swaps {
		if !swap.Open || swap.Step != name {
			continue
		}
		because := errors.New(unit + " was not proven healthy in its time (dead-man's switch)")
		err := undoStep(ctx, r.Env, steps[0], because)
		var back *RolledBackError
		if !errors.As(err, &back) {
			return err
		}
		failed := &failedSwap{Reason: because.Error(), Time: r.Env.Clock.Now().UTC()}
		for _, k := range history.keptBy(name) {
			if k.After != "" {
				failed.SHA256s = append(failed.SHA256s, k.After)
			}
		}
		result := Result{Step: name, Result: "failed", Error: err.Error(), Started: r.Env.Clock.Now().UTC()}
		err = errors.Join(
			swapped{step: name, unit: unit}.save(r.Env, swapRecord{Step: name, Failed: failed}),
			keepResult(r.Env, result),
			r.fail(ctx, err))
		if ended.ID != "" && ended.RunID == r.Env.Options.RunID {
			o := NewOutcome(&StepError{Step: name, Err: back}, []Result{result})
			o.ID = ended.ID
			err = errors.Join(err, Conclude(context.WithoutCancel(ctx), r.Env.Record, o))
		}
		return err
	}
	r.Env.Log.Info("nothing to put back: the swap has come to its end", "step", name)
	return nil
}

// swapOpen tells, as the disk has it now, whether a swap of the step is open.
func (r Runner) swapOpen(name string) (bool, error) {
	history, err := NewRecord(r.Env.Host.FS, r.Env.Options.RunID).Journal().History()
	for _, s := range history.swaps {
		if s.Open && s.Step == name {
			return true, err
		}
	}
	return false, err
}

// lockAtLast waits for the lock without an end: there is nobody after the
// switch.
func (r Runner) lockAtLast(ctx context.Context) (unlock func(), err error) {
	for {
		unlock, err = Lock(ctx, r.Env)
		var held *BlockedError
		if !errors.As(err, &held) || ctx.Err() != nil {
			return unlock, err
		}
		r.Env.Log.Warn("waiting for another process of the upgrader", "reason", err.Error())
		if err := r.Env.Clock.Sleep(ctx, time.Second); err != nil {
			return nil, err
		}
	}
}

// endUnit kills the upgrader's unit, so that systemd does not start it again, and
// returns what it was doing, the zero Invocation when it was gone already.
func endUnit(ctx context.Context, env Env) (ended Invocation, err error) {
	ending, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("not within a minute"))
	defer cancel()
	err = poll(ending, env, 200*time.Millisecond, func(ctx context.Context) error {
		unit, err := env.Host.Units.Show(ctx, UnitName)
		if err != nil {
			return err
		}
		if !unit.Running() && unit.ActiveState != "deactivating" {
			return nil
		}
		if inv, err := ParseInvocation(unit.Environment); err == nil {
			ended = inv
		}
		env.Log.Warn("ending the upgrader, which is late", "unit", UnitName, "state", unit.ActiveState)
		if err := env.Host.Units.Kill(ctx, UnitName, int(syscall.SIGKILL)); err != nil {
			return err
		}
		if err := env.Host.Units.StopTransient(ctx, UnitName); err != nil {
			return err
		}
		return errors.New(UnitName + " is still there")
	})
	return ended, err
}
