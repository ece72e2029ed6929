package steps

import (
	"context"
	"fmt"
	"time"
)

// How long a static pod may take to come up at its new image, and for how long
// it then has to stay healthy: a pod that dies right after its first answer
// did not come up.
const (
	podsComeUp = 5 * time.Minute
	podsSettle = 3 * time.Second
)

// up is nil when every pod runs at its manifest's image and is healthy.
func up(ctx context.Context, env Env, pods []staticPod) error {
	facts, err := running(ctx, env, pods)
	if err != nil {
		return err
	}
	health, err := healthy(ctx, env, pods)
	if err != nil {
		return err
	}
	for _, f := range append(facts, health...) {
		if f.Have != f.Want {
			return fmt.Errorf("%s: %s, not %s", f.Name, f.Have, f.Want)
		}
	}
	return nil
}

// waitStaticPods waits until every static pod runs at its manifest's image,
// answers at its health endpoint, and has done so for podsSettle.
func waitStaticPods(ctx context.Context, env Env, pods []staticPod) error {
	var since time.Time
	err := within(ctx, env, podsComeUp, time.Second, func(ctx context.Context) error {
		if err := up(ctx, env, pods); err != nil {
			since = time.Time{}
			return err
		}
		now := env.Clock.Now()
		if since.IsZero() {
			since = now
		}
		if left := podsSettle - now.Sub(since); left > 0 {
			return fmt.Errorf("healthy, watching for another %s", left)
		}
		return nil
	})
	if err != nil {
		return &HintError{
			Err:  fmt.Errorf("wait for the static pods: %w", err),
			Hint: "crictl ps -a; crictl logs of the container that does not run; journalctl -u kubelet",
		}
	}
	return nil
}

// within is poll with a bound of its own.
func within(ctx context.Context, env Env, bound, interval time.Duration, ready func(context.Context) error) error {
	deadline := env.Clock.Now().Add(bound)
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%w; last: %w", context.Cause(ctx), err)
		}
		if !env.Clock.Now().Before(deadline) {
			return fmt.Errorf("not after %s: %w", bound, err)
		}
		if slept := env.Clock.Sleep(ctx, interval); slept != nil {
			return fmt.Errorf("%w; last: %w", slept, err)
		}
	}
}
