package steps

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/node-upgrader/node-upgrader/image"
)

const (
	kubeletUnit = "kubelet.service"
	// kubeletComesUp bounds the wait for the new kubelet; what is left of the
	// step's time is for putting the old one back.
	kubeletComesUp = 3 * time.Minute
	// kubeletSettles is for how long all has to be well after that. A new
	// minor version makes the static pods again some 4 s after the node is
	// Ready, and the API server is away for a moment.
	kubeletSettles = 5 * time.Second
	// kubeletAnswers bounds one look at it and at the API server.
	kubeletAnswers = 5 * time.Second
	// kubeletCrashes in a row are enough to call the new kubelet broken.
	kubeletCrashes = 3
)

// kubeletStep replaces the kubelet and kubectl. The kubelet is restarted only
// when the running one is not the bundle's.
func kubeletStep() Step {
	k := &kubeletUpgrade{}
	return Step{
		Name: stepKubelet, Short: "replace the kubelet and kubectl",
		Timeout: 5 * time.Minute, Check: k.check, Run: k.run, Undo: undoKubelet,
	}
}

type kubeletUpgrade struct{ digests digestMemo }

func (k *kubeletUpgrade) check(ctx context.Context, env Env) (State, error) {
	found, err := k.find(ctx, env)
	var blocked *BlockedError
	if errors.As(err, &blocked) {
		return State{Phase: Blocked, Blocks: blocked.Blocks}, nil
	}
	if err != nil {
		return State{}, err
	}
	state := State{Phase: Needed, Facts: found.facts(), Changes: replaceChanges(found.stale)}
	if found.restart() {
		state.Changes = append(state.Changes, Change{"restart", kubeletUnit})
		blocks, facts, err := tryAhead(ctx, env, found)
		if err != nil {
			return State{}, err
		}
		tried, err := triedBefore(env, kubeletUnit)
		if err != nil {
			return State{}, err
		}
		room, err := roomFor(env, found.toInstall())
		if err != nil {
			return State{}, err
		}
		others, err := otherKubelets(ctx, env, found)
		if err != nil {
			return State{}, err
		}
		blocks = slices.Concat(blocks, tried, room, others)
		state.Facts = append(state.Facts, facts...)
		if len(blocks) > 0 {
			state.Phase, state.Blocks = Blocked, blocks
		}
		return state, nil
	}
	if state.Blocks, err = roomFor(env, found.stale); err != nil {
		return State{}, err
	}
	if len(state.Blocks) > 0 {
		state.Phase = Blocked
		return state, nil
	}
	looking, cancel := context.WithTimeoutCause(ctx, lookPatience, fmt.Errorf("no answer from the API server for %s", lookPatience))
	defer cancel()
	facts, err := kubeletHealth(looking, env, found)
	if err != nil {
		return State{}, err
	}
	state.Facts = append(state.Facts, facts...)
	if len(found.stale) == 0 && unmet(state) == "" {
		state.Phase = Done
	}
	return state, nil
}

func (k *kubeletUpgrade) run(ctx context.Context, env Env) error {
	found, err := k.find(ctx, env)
	if err != nil {
		return err
	}
	if !found.restart() {
		return install(ctx, env, found.stale)
	}
	if err := tryNow(ctx, env, found); err != nil {
		return err
	}
	others, err := otherKubelets(ctx, env, found)
	if err != nil {
		return err
	}
	if len(others) > 0 {
		return &BlockedError{Blocks: others}
	}
	if err := mustBeDrained(ctx, env); err != nil {
		return err
	}
	state, err := keepKubeletState(ctx, env, found)
	if err != nil {
		return err
	}
	swapping := false
	err = swap(ctx, env, swapped{
		step: stepKubelet, unit: kubeletUnit, files: found.toInstall(),
		prepare: func(ctx context.Context) error {
			if !swapping { // the start of the new kubelet
				swapping = true
				return nil
			}
			// The old one again: it may not read what the new one has written.
			for _, file := range state {
				if err := restore(ctx, env, file); err != nil {
					return err
				}
			}
			return nil
		},
		healthy:   func(ctx context.Context) error { return k.healthy(ctx, env) },
		recovered: func(ctx context.Context) error { return k.recovered(ctx, env) },
	})
	if err != nil {
		return &HintError{
			Err:  err,
			Hint: "journalctl --unit kubelet; mend the cause and run the upgrader with a new --run-id, or give a drained node back with `upgrader uncordon`",
		}
	}
	return nil
}

// healthy waits for the new kubelet, and watches it until it has settled.
func (k *kubeletUpgrade) healthy(ctx context.Context, env Env) error {
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	var pid int
	var since time.Time
	var broken error
	err := within(ctx, env, kubeletComesUp, 500*time.Millisecond, func(ctx context.Context) error {
		found, err := k.find(ctx, env)
		if err != nil {
			return err
		}
		if u := found.unit; u.SubState == "failed" || u.Restarts >= kubeletCrashes {
			broken = fmt.Errorf("%s does not stay up: %d restarts", u.Name, u.Restarts)
			if u.ExitStatus != 0 || u.Result != "success" { // between two restarts systemd says success
				broken = fmt.Errorf("%w, %s, exit status %d", broken, u.Result, u.ExitStatus)
			}
			giveUp(broken)
			return broken
		}
		if err := k.verify(ctx, env, found); err != nil {
			since = time.Time{}
			return err
		}
		if since.IsZero() || found.unit.MainPID != pid {
			since, pid = env.Clock.Now(), found.unit.MainPID
		}
		if left := kubeletSettles - env.Clock.Now().Sub(since); left > 0 {
			return fmt.Errorf("healthy, watching it for another %s", left.Round(time.Millisecond))
		}
		return nil
	})
	if broken != nil {
		return broken
	}
	return err
}

// verify is nil when the new kubelet and what depends on it are well now. Its
// patience is short: in between the kubelet itself has to be looked at.
func (k *kubeletUpgrade) verify(ctx context.Context, env Env, found kubeletFound) error {
	ctx, cancel := context.WithTimeoutCause(ctx, kubeletAnswers, fmt.Errorf("no answer for %s", kubeletAnswers))
	defer cancel()
	facts, err := kubeletHealth(ctx, env, found)
	if err != nil {
		return err
	}
	facts = append(found.facts(), facts...)
	if env.Node.Role == ControlPlane {
		more, err := controlPlaneHealth(ctx, env)
		if err != nil {
			return err
		}
		facts = append(facts, more...)
	}
	if wrong := unmet(State{Facts: facts}); wrong != "" {
		return errors.New(wrong)
	}
	return nil
}

// recovered waits until the old kubelet, put back, is up. The API server is not
// asked: it may be what is broken.
func (k *kubeletUpgrade) recovered(ctx context.Context, env Env) error {
	return poll(ctx, env, 500*time.Millisecond, func(ctx context.Context) error {
		found, err := k.find(ctx, env)
		if err != nil {
			return err
		}
		if found.unit.MainPID == 0 {
			return fmt.Errorf("%s is %s", kubeletUnit, found.unit.ActiveState)
		}
		return probeHealthz(ctx, env, found.args)
	})
}

// targetVersion is the version that the node is to report.
func targetVersion(b *image.Bundle) string { return b.Version(image.Kubelet) }
