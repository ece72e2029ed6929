package main

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/node-upgrader/node-upgrader/hostexec"
	"github.com/node-upgrader/node-upgrader/steps"
)

// turnFile is where whoever starts waits for its turn. It is not in the state's
// directory: a start that is refused leaves nothing there.
const turnFile = "/run/upgrader.lock"

// How often the turn is asked for, and after how many times that is told.
const (
	turnPause    = 200 * time.Millisecond
	turnPatience = 10
)

// inTurn follows the unit where it runs, and does work as the only one that
// starts it where it does not. Of many starts at once one looks at the node,
// stages and starts the unit: all of them looking would keep each other, and
// shims that are asked for their processes, from answering. The others follow as
// soon as the unit runs, or are told that it is another run's. The kernel drops
// the turn with the process.
func (s *session) inTurn(ctx context.Context, cmd *cobra.Command, work func() ([]steps.Result, error)) ([]steps.Result, error) {
	env := s.runner.Env
	attach := func() (steps.Outcome, bool, error) {
		o, attached, err := steps.Attach(ctx, env, s.invocation(cmd), s.log.replay)
		return o, attached, errors.Join(err, o.Err())
	}
	for waits := 0; ; waits++ {
		if o, attached, err := attach(); attached || err != nil {
			return o.Results, err
		}
		unlock, err := env.Host.FS.TryLock(turnFile)
		if err == nil {
			defer unlock()
			// Who had the turn before may have started it and gone.
			if o, attached, err := attach(); attached || err != nil {
				return o.Results, err
			}
			return work()
		}
		if !errors.Is(err, hostexec.ErrLocked) {
			return nil, err
		}
		if waits == turnPatience {
			env.Log.Info("waiting: another upgrader looks at this node or stages its bundle", "lock", turnFile)
		}
		if err := env.Clock.Sleep(ctx, turnPause); err != nil {
			return nil, err
		}
	}
}
