package steps

import (
	"context"
	"testing"
	"time"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

// lockedEnv has a clock that passes as fast as it is waited for.
func lockedEnv(t *testing.T) Env {
	t.Helper()
	now := time.Unix(0, 0)
	return Env{Host: hostexec.Host{FS: hostexec.NewFS(t.TempDir())}, Clock: Clock{
		Now:   func() time.Time { return now },
		Sleep: func(ctx context.Context, d time.Duration) error { now = now.Add(d); return ctx.Err() },
	}}
}

func TestOnlyOneHoldsTheLock(t *testing.T) {
	env := lockedEnv(t)
	unlock, err := Lock(t.Context(), env)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Lock(t.Context(), env); ExitCode(err) != ExitBlocked {
		t.Errorf("a second one: exit %d, %v", ExitCode(err), err)
	}
	unlock()
	again, err := Lock(t.Context(), env)
	if err != nil {
		t.Fatalf("after the first has ended: %v", err)
	}
	again()
}

func TestLockThatCannotBeMadeIsNoLock(t *testing.T) {
	env := lockedEnv(t)
	if err := env.Host.FS.MkdirAll(StateDir+"/lock", 0o700); err != nil { // a directory in its place
		t.Fatal(err)
	}
	if _, err := Lock(t.Context(), env); err == nil || ExitCode(err) == ExitBlocked {
		t.Errorf("%v", err)
	}
}
