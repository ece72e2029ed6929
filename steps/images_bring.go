package steps

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// BringImages brings the images that the copy step would, and nothing else: it
// stages nothing, opens no run and does not ask whether an upgrade could start.
// So it may be done on every node before the first of them is upgraded, which
// gives the add-ons their new images on all of them. What the bundle has is
// compared with it on the way. It is idempotent. What forbids it is a
// *BlockedError or *image.BadBundleError. The caller holds the node's Lock.
func (r Runner) BringImages(ctx context.Context) ([]Result, error) {
	r.Env.Host = r.Env.Host.Watched(r.Env.watch())
	env := r.Env
	env.Log = env.Log.With("step", stepCopy)
	result := Result{Step: stepCopy, Result: "unchanged", Started: env.Clock.Now().UTC()}
	err := bringImages(ctx, env, &result)
	result.Seconds = env.Clock.Now().Sub(result.Started).Seconds()
	if err != nil {
		result.Result, result.Error = "failed", err.Error()
	}
	return []Result{result}, err
}

func bringImages(ctx context.Context, env Env, result *Result) error {
	if _, err := CheckSignature(env); err != nil {
		return err
	}
	look := func(ctx context.Context) (imagesLook, State, error) {
		var s State
		l, err := lookImages(ctx, env)
		if err == nil && l.unknown != "" {
			err = errors.New("which images this node has cannot be told: " + l.unknown)
		}
		if err == nil {
			err = l.state(env, &s)
		}
		return l, s, err
	}
	l, state, err := look(ctx)
	if err != nil {
		return fmt.Errorf("look at the images: %w", err)
	}
	if err := blockedBy(state.Blocks); err != nil || len(state.Changes)+len(l.missing()) == 0 {
		return err
	}
	if err := l.pullAll(ctx, env); err != nil {
		return err
	}
	if len(state.Changes) == 0 && !slices.ContainsFunc(l.missing(), func(n imageNeed) bool { return !n.left }) {
		return nil
	}
	if err := l.importAll(ctx, env, env.Bundle); err != nil {
		return err
	}
	result.Result = "done"
	waiting, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("not within a minute"))
	defer cancel()
	return poll(waiting, env, 200*time.Millisecond, func(ctx context.Context) error {
		l, _, err := look(ctx)
		if due := l.due(); err == nil && len(due) > 0 {
			err = fmt.Errorf("the container runtime does not show %s yet", due[0].name)
		}
		return err
	})
}
