package steps

import (
	"context"
	"errors"
	"time"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

// lockPatience is how long a step waits for another process of the upgrader: a
// container that was just told to end has 30 s for it.
const lockPatience = 45 * time.Second

// Lock makes this process the only one that works on the node: steps that stay
// in their container hold no unit, so the unit's name alone does not keep a
// drain and a kubelet's swap apart. The kernel drops the lock with the process.
// A *BlockedError when another holds it for longer than it takes to end.
func Lock(ctx context.Context, env Env) (unlock func(), err error) {
	blocks, err := writable(env, StateDir+"/")
	if err == nil && len(blocks) > 0 {
		err = &BlockedError{Blocks: blocks}
	}
	if err != nil {
		return nil, err
	}
	if err := env.Host.FS.MkdirAll(StateDir, 0o700); err != nil {
		return nil, err
	}
	deadline := env.Clock.Now().Add(lockPatience)
	for {
		unlock, err = env.Host.FS.TryLock(StateDir + "/lock")
		if !errors.Is(err, hostexec.ErrLocked) || env.Clock.Now().After(deadline) {
			break
		}
		if err := env.Clock.Sleep(ctx, 200*time.Millisecond); err != nil {
			return nil, err
		}
	}
	if errors.Is(err, hostexec.ErrLocked) {
		return nil, &BlockedError{Blocks: []Block{{
			Reason: "another process of the upgrader drains or upgrades this node",
			Hint:   "wait for it to end, then run the same command again (upgrader status)",
		}}}
	}
	return unlock, err
}
