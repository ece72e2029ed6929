package download

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// mostAttempts bounds a server that gives a few bytes each time, in multiples of
// Options.Attempts.
const mostAttempts = 20

// retry calls attempt until it succeeds, fails for good, or fails too often with
// nothing that came. attempt tells whether something came.
func (f *Fetcher) retry(ctx context.Context, address string, attempt func() (bool, error)) error {
	pauses := backoff.NewExponentialBackOff()
	pauses.InitialInterval = f.o.Pause
	pauses.MaxInterval = 30 * time.Second
	pauses.Reset()
	for idle, all := 0, 1; ; all++ {
		came, err := attempt()
		var failed *Error
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !errors.As(err, &failed) || failed.permanent:
			return err
		}
		if came {
			idle = 0
			pauses.Reset()
		}
		idle++
		if idle >= f.o.Attempts || all >= mostAttempts*f.o.Attempts {
			failed.Err = fmt.Errorf("%w (tried %d times)", failed.Err, all)
			return failed
		}
		pause := max(pauses.NextBackOff(), failed.after)
		f.o.Log.Warn(failed.Err.Error()+", trying again", "url", Redacted(address), "in", pause.Round(time.Millisecond))
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pause):
		}
	}
}
