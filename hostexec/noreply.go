package hostexec

import (
	"context"
	"time"
)

// noReply is the bus's own answer in the place of one who has left it before
// answering.
const noReply = "org.freedesktop.DBus.Error.NoReply"

// How often, and after which pauses, systemd is asked again that has left the bus.
const (
	replyTries = 20
	replyPause = 250 * time.Millisecond
)

// replied asks again while systemd leaves the bus without an answer, as it does
// when it connects to it anew: early after a boot, and when it executes itself
// again. ask has to be idempotent: what was asked may have been done.
func replied(ctx context.Context, ask func() error) error {
	for try := 1; ; try++ {
		err := ask()
		if !isDBusError(err, noReply) || try == replyTries {
			return err
		}
		select {
		case <-time.After(replyPause):
		case <-ctx.Done():
			return err
		}
	}
}
