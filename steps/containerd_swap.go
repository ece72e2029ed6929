package steps

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"

	"golang.org/x/mod/semver"

	"github.com/node-upgrader/node-upgrader/steps/cri"
)

func swapContainerd(ctx context.Context, env Env, l containerdLook) error {
	if err := surveyContainers(ctx, env, l.daemon.unit.MainPID); err != nil {
		return fmt.Errorf("survey the containers: %w", err)
	}
	var unknown []shim // to the old containerd, put back
	err := swap(ctx, env, swapped{
		step: stepContainerd, unit: containerdUnit,
		// All of them, also those that an interrupted attempt has replaced:
		// they have to be put back together.
		files: l.files,
		prepare: func(ctx context.Context) error {
			// Both ways the file that is to be started lies there now.
			var look error
			if unknown, look = unknownShims(ctx, env, l); look != nil {
				env.Log.Error("shims cannot be compared", "reason", look.Error())
			}
			losses, err := preventLosses(ctx, env, l.stateDir())
			if err == nil && len(losses) > 0 && !env.Options.DrainFirst {
				err = fmt.Errorf("containerd would throw away: %s", describeLosses(losses))
			}
			return err
		},
		healthy: func(ctx context.Context) error {
			return waitForContainerd(ctx, env, wantContainerd(env))
		},
		recovered: func(ctx context.Context) error {
			err := waitForContainerd(ctx, env, "")
			if err == nil && len(unknown) > 0 {
				return &lostError{unknown}
			}
			return err
		},
	})
	if err == nil {
		return nil
	}
	// What the restarts did is worth knowing most when they went wrong. The
	// step's time may be what ran out.
	looking, cancel := context.WithTimeout(context.WithoutCancel(ctx), comebackPatience)
	defer cancel()
	if compared := compareContainers(looking, env, comebackPatience/2); compared != nil {
		env.Log.Error("containers after putting the old files back", "reason", compared.Error())
		var back *RolledBackError
		var lost *leaveError
		// That nobody is lost and it cannot be written down is no half rollback.
		if errors.As(err, &back) && (errors.As(compared, &lost) || looking.Err() != nil) {
			err = &RollbackError{Err: back.Err, Rollback: compared}
		}
	}
	hint := "journalctl -u " + containerdUnit + " --since -15min; mend the cause and run the upgrader with a new --run-id"
	if len(unknown) > 0 {
		hint = "drain the node and reboot it: these containers run on, and nobody stops them; " + hint
		if kept := recordLost(context.WithoutCancel(ctx), env, unknown); kept != nil {
			env.Log.Error("the lost containers cannot be recorded", "reason", kept.Error())
		}
	}
	return &HintError{Err: err, Hint: hint}
}

// unknownShims are the shims that the containerd that is about to be started
// cannot find: 2.x writes where a shim listens into bootstrap.json, 1.7 reads
// the file address alone. What 1.7 made has both once 2.x has loaded it.
func unknownShims(ctx context.Context, env Env, l containerdLook) ([]shim, error) {
	out, err := ask(ctx, env.Host, l.daemon.binary, "--version")
	version := l.version
	if fields := strings.Fields(string(out.Stdout)); err == nil && len(fields) >= 3 {
		version = fields[2]
	}
	return shimsUnknownTo(env, l, version)
}

// shimsUnknownTo are the shims that a containerd of this version, "" for any,
// does not find.
func shimsUnknownTo(env Env, l containerdLook, version string) ([]shim, error) {
	if version == "" || semver.Compare(semverOf(version), "v2.0.0-0") >= 0 {
		return nil, nil
	}
	shims, err := listShims(env.Host.FS, l.stateDir())
	if err != nil {
		return nil, err
	}
	var unknown []shim
	for _, s := range shims {
		made, err := env.Host.FS.Exists(path.Join(s.Dir, "bootstrap.json"))
		if err != nil {
			return nil, err
		}
		known, err := env.Host.FS.Exists(path.Join(s.Dir, "address"))
		if err != nil {
			return nil, err
		}
		if made && !known {
			unknown = append(unknown, s)
		}
	}
	return unknown, nil
}

// lostError is an old containerd that was put back and is well, but for the
// containers that it does not know.
type lostError struct{ shims []shim }

func (e *lostError) Error() string {
	names := make([]string, len(e.shims))
	for i, s := range e.shims {
		names[i] = s.String()
	}
	return "the old containerd does not know what the new one has made: " + strings.Join(names, ", ")
}

// recordLost adds containers to the record's "containers-changed".
func recordLost(ctx context.Context, env Env, lost []shim) error {
	var changed []ChangedContainer
	if _, err := env.Record.Load(containersChanged, &changed); err != nil {
		return err
	}
	for _, s := range lost {
		namespace, pod, _ := strings.Cut(s.Pod, "/")
		c := cri.Container{ID: s.ID, Namespace: namespace, Pod: pod, Name: s.Container, Sandbox: s.Container == "", PID: s.pid}
		now, err := processOf(env, s.pid)
		if err != nil {
			return err
		}
		c.Started = now.Started
		gone := ChangedContainer{Container: c, What: "lost"}
		env.Log.Warn(gone.String(), "event", "container", "id", c.ID)
		changed = append(changed, gone)
	}
	return env.Record.Save(ctx, containersChanged, changed)
}
