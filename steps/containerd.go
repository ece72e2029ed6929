package steps

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/node-upgrader/node-upgrader/image"
)

// containerdStep replaces containerd, its shim, ctr and runc.
//
// containerd and the shim change together and with a restart; runc and ctr are
// executed anew each time and need none. The containers run on: their shims
// are processes of their own, which is why the unit's KillMode must be
// "process". What ran before is compared with what runs after. A container that
// was restarted is reported and kept in the record as "containers-changed"; the
// step fails only when one has not come back after a minute. Its files are
// left in place then: putting them back would be a second restart and would
// bring no container back.
//
// The configuration file is never written: containerd migrates an old one in
// memory, and an old containerd could not read what a new one would write.
func containerdStep() Step {
	return Step{
		Name: stepContainerd, Short: "replace containerd, its shim, ctr and runc",
		Timeout: 5 * time.Minute,
		Check:   checkContainerd, Run: runContainerd, Undo: undoContainerd,
	}
}

// How long a containerd that was started may take until CRI is ready, and the
// kubelet until it has started again what was lost.
const (
	containerdPatience = 2 * time.Minute
	comebackPatience   = time.Minute
)

// containerdWork is what there is to do.
type containerdWork int

const (
	workNone    containerdWork = iota
	workCompare                // look what became of the containers
	workWait                   // it runs, but CRI is not ready
	workInstall                // runc or ctr only
	workSwap                   // replace and restart
)

// containerdLook is what was found on the node.
type containerdLook struct {
	daemon   containerdDaemon
	config   containerdConfig
	files    []placed
	outdated []placed
	version  string // what the running daemon answers; "" when it does not
	notReady error  // what CRI lacks at that version
	work     containerdWork
	facts    []Fact
	blocks   []Block // why the files cannot be replaced
}

// stateDir is where containerd keeps what does not outlive the boot.
func (l containerdLook) stateDir() string {
	if l.daemon.state != "" {
		return l.daemon.state
	}
	return l.config.state()
}

func lookAtContainerd(ctx context.Context, env Env) (l containerdLook, err error) {
	if l.daemon, err = findContainerd(ctx, env.Host); err != nil {
		return l, err
	}
	if l.config, err = installedConfig(ctx, env.Host, l.daemon); err != nil {
		return l, err
	}
	if l.files, err = placeContainerd(env, l.daemon, l.config); err != nil {
		return l, err
	}
	if l.blocks, err = otherPrograms(env.Host.FS, l.daemon, l.files); err != nil {
		return l, err
	}
	if l.outdated, err = outdated(ctx, env, l.files); err != nil {
		return l, err
	}
	room, err := roomFor(env, l.outdated)
	if err != nil {
		return l, err
	}
	l.blocks = append(l.blocks, room...)
	raise := func(w containerdWork) { l.work = max(l.work, w) }
	for _, f := range l.files {
		fact := Fact{Name: f.Dest, Have: f.SHA256[:12], Want: f.SHA256[:12]}
		for _, o := range l.outdated {
			if o.Dest == f.Dest {
				fact.Have = "another"
				if f.Name() == "runc" || f.Name() == "ctr" {
					raise(workInstall)
				} else {
					raise(workSwap)
				}
			}
		}
		l.facts = append(l.facts, fact)
	}
	if pending, err := comparisonPending(env); err != nil {
		return l, err
	} else if pending {
		raise(workCompare)
	}
	return l, l.lookAtProcess(ctx, env, raise)
}

// lookAtProcess compares what runs, since a file's presence proves nothing.
func (l *containerdLook) lookAtProcess(ctx context.Context, env Env, raise func(containerdWork)) error {
	want := wantContainerd(env)
	running := Fact{Name: "containerd's process", Have: "not running", Want: "the bundle's"}
	if pid := l.daemon.unit.MainPID; pid > 0 {
		digest, err := env.Host.FS.ProcessDigest(ctx, pid)
		if err != nil {
			return err
		}
		running.Have = "another"
		if f, ok := env.Bundle.File(image.Containerd, "containerd"); ok && f.SHA256 == digest {
			running.Have = running.Want
		}
	}
	if running.Have != running.Want {
		raise(workSwap)
	}
	version, ready := Fact{Name: "containerd's version", Want: want}, Fact{Name: "CRI", Have: "ready", Want: "ready"}
	client, err := env.Runtime(ctx)
	if err == nil {
		defer client.Close()
		l.version, err = client.Version(ctx)
	}
	switch {
	case err != nil:
		version.Have, ready.Have = "no answer", "no answer"
		raise(workSwap)
	default:
		version.Have = l.version
		if l.version != want {
			raise(workSwap)
		}
		if err := client.Ready(ctx); err != nil {
			l.notReady = err
			ready.Have = err.Error()
			raise(workWait)
		}
	}
	l.facts = append(l.facts, running, version, ready)
	return nil
}

// wantContainerd is the bundle's version as containerd itself says it.
func wantContainerd(env Env) string {
	return strings.TrimPrefix(env.Bundle.Version(image.Containerd), "v")
}

func checkContainerd(ctx context.Context, env Env) (State, error) {
	l, err := lookAtContainerd(ctx, env)
	if errors.Is(err, errNoUnit) {
		return State{Phase: Blocked, Blocks: []Block{{
			Reason: err.Error(),
			Hint:   "systemctl list-unit-files | grep -i containerd: another container runtime, or containerd under another name, is not upgraded",
		}}}, nil
	}
	if err != nil {
		return State{}, err
	}
	state := State{Phase: Needed, Facts: l.facts}
	switch l.work {
	case workNone:
		state.Phase = Done
	case workCompare:
		state.Changes = []Change{{"compare", "the containers with those before the restart"}}
	case workWait:
		state.Changes = []Change{{"wait", "until CRI is ready"}}
	case workInstall:
		state.Changes = replaceChanges(l.outdated)
		state.Blocks = l.blocks
	case workSwap:
		guard, err := guardContainerd(ctx, env, l)
		if err != nil {
			return State{}, err
		}
		state.Facts = append(state.Facts, guard.facts...)
		state.Changes = append(replaceChanges(l.outdated), guard.changes...)
		state.Changes = append(state.Changes, Change{"restart", containerdUnit})
		state.Blocks = guard.blocks
	}
	if len(state.Blocks) > 0 {
		state.Phase = Blocked
	}
	return state, nil
}

func runContainerd(ctx context.Context, env Env) error {
	l, err := lookAtContainerd(ctx, env)
	if err != nil {
		return err
	}
	switch l.work {
	case workNone:
		return nil
	case workCompare:
	case workWait:
		if err := waitForContainerd(ctx, env, wantContainerd(env)); err != nil {
			return err
		}
	case workInstall:
		if len(l.blocks) > 0 {
			return &BlockedError{Blocks: l.blocks}
		}
		return install(ctx, env, l.outdated)
	case workSwap:
		guard, err := guardContainerd(ctx, env, l)
		if err != nil {
			return err
		}
		if len(guard.blocks) > 0 {
			return &BlockedError{Blocks: guard.blocks}
		}
		if err := swapContainerd(ctx, env, l); err != nil {
			return err
		}
	}
	return compareContainers(ctx, env, comebackPatience)
}

// waitForContainerd waits until CRI is ready at this version, "" for any.
func waitForContainerd(ctx context.Context, env Env, version string) error {
	waiting, cancel := context.WithTimeoutCause(ctx, containerdPatience, fmt.Errorf("not within %s", containerdPatience))
	defer cancel()
	err := poll(waiting, env, 200*time.Millisecond, func(ctx context.Context) error {
		client, err := env.Runtime(ctx)
		if err != nil {
			return err
		}
		defer client.Close()
		have, err := client.Version(ctx)
		if err != nil {
			return err
		}
		if version != "" && have != version {
			return fmt.Errorf("containerd says that it is %s, not %s", have, version)
		}
		return client.Ready(ctx)
	})
	if err != nil {
		return fmt.Errorf("wait for containerd: %w", err)
	}
	return nil
}
