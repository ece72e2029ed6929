package steps

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

// While a run is open, systemd starts RecoveryUnit at boot before containerd and
// the kubelet. It lies on the host as a unit file and the link that enables it,
// and goes with the end of the run.
const (
	RecoveryUnit = "upgrader-recovery.service"

	recoveryFile = "/etc/systemd/system/" + RecoveryUnit
	recoveryLink = "/etc/systemd/system/multi-user.target.wants/" + RecoveryUnit
)

// recoveryText is the unit file. Its failure does not keep the services from
// starting: they are ordered after it, and do not require it.
func recoveryText(program string) string {
	return `# Made by the upgrader for the time of one run; it is removed with its end.
[Unit]
Description=Make the files of an interrupted upgrade consistent
Documentation=https://github.com/node-upgrader/node-upgrader/blob/main/docs/recovery.md
RequiresMountsFor=` + StateDir + `
Before=` + containerdUnit + ` ` + kubeletUnit + `
ConditionPathExists=` + program + `

[Service]
Type=oneshot
TimeoutStartSec=5min
ExecStart=` + program + ` recover --output=json

[Install]
WantedBy=multi-user.target
`
}

// guardBoot makes the next boot recover what a crash leaves. It is idempotent,
// and needs no daemon-reload: systemd reads its units at boot.
func guardBoot(ctx context.Context, env Env) error {
	if env.Program == "" {
		return nil // a test's host, which does not boot
	}
	text := []byte(recoveryText(env.Program))
	if have, err := env.Host.FS.ReadFile(recoveryFile); err == nil && string(have) == string(text) {
		if there, err := env.Host.FS.Exists(recoveryLink); err == nil && there {
			return nil
		}
	}
	files := env.aside()
	err := files.MkdirAll(parent(recoveryLink), 0o755)
	if err == nil {
		err = files.WriteFile(ctx, recoveryFile, text, 0o644)
	}
	if err == nil {
		err = files.Symlink(recoveryFile, recoveryLink)
	}
	if err != nil {
		return &HintError{
			Err:  fmt.Errorf("make the recovery at boot: %w", err),
			Hint: "systemd's configuration has to be writable: " + recoveryFile,
		}
	}
	return nil
}

// unguardBoot removes what guardBoot has made, the link first.
func unguardBoot(env Env) error {
	for _, p := range []string{recoveryLink, recoveryFile} {
		if err := env.aside().Remove(p); err != nil {
			return fmt.Errorf("remove the recovery at boot: %w", err)
		}
	}
	return nil
}

// aside is the host's files for what is no step's work, and so not in the
// journal.
func (e Env) aside() hostexec.FS { return e.Host.FS.Watched(e.Watch) }

// Recover makes the files of every open run consistent, at boot, before
// containerd and the kubelet start: a swap that was not proven healthy is put
// back as a whole, and manifests and configuration that kubeadm was writing are
// mended. It works on files alone. The run stays open, and goes on when the
// upgrader is started again; a swap that was put back here is tried again then.
func Recover(ctx context.Context, env Env) error {
	ids, err := list(env.Host.FS, runsDir)
	if err != nil {
		return err
	}
	for _, id := range ids {
		one := env
		one.Options.RunID = id
		one.Record = NewRecord(env.aside(), id)
		one.Host = env.Host.Watched(one.watch())
		one.Log = env.Log.With("run", id)
		history, unreadable := one.Record.Journal().History()
		if unreadable != nil {
			err = errors.Join(err, unreadable)
			continue
		}
		if history.Begun() {
			err = errors.Join(err, recoverRun(ctx, one, history))
		}
	}
	return errors.Join(err, mendBeforeKubelet(ctx, env))
}

func recoverRun(ctx context.Context, env Env, history History) error {
	strict := env.Record.Journal().Lenient(func(err error) {
		env.Log.Warn("going on without the journal", "reason", err.Error())
	})
	defer strict()
	var failed error
	for unit, swap := range history.swaps {
		if !swap.Open {
			continue
		}
		env.Log.Warn("the swap was cut short: putting the old files back", "unit", unit, "step", swap.Step)
		var err error
		for _, k := range history.keptBy(swap.Step) {
			err = errors.Join(err, putBack(ctx, env, k.Kept))
		}
		if err == nil {
			err = swapped{step: swap.Step, unit: unit}.save(env, swapRecord{Step: swap.Step})
		}
		failed = errors.Join(failed, err)
	}
	return errors.Join(failed, sweep(env, history))
}

// sweep removes the temporary files that were being written, or lay ready.
func sweep(env Env, history History) error {
	err := sweepKept(env, history.Kept)
	for _, e := range history.Pending {
		if _, ours := hostexec.TempOf(e.Object); ours && strings.HasPrefix(e.Object, "/") {
			err = errors.Join(err, env.Host.FS.Remove(e.Object))
		}
	}
	return err
}

// sweepKept removes the temporary files of those that were to be replaced.
func sweepKept(env Env, kept []StepKept) error {
	var err error
	for _, k := range kept {
		err = errors.Join(err, env.Host.FS.Sweep(k.Path))
	}
	return err
}
