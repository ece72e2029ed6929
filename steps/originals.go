package steps

import (
	"context"
	"errors"
	"os"
	"path"
	"strings"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

// backupPath is where the original of a replaced file is kept. Next to it, a
// file named *.absent stands for an original that was not there.
func backupPath(env Env, dest string) string {
	return env.Record.Path("backup", strings.TrimPrefix(dest, "/"))
}

// keepOriginal keeps what f replaces, and tells whether there is something to go
// back to. What is not the bundle's is the original, whatever an earlier use of
// the same bundle has kept: it may have been months ago. Where the bundle's file
// lies there already, what was kept counts only when resuming an attempt that
// did not come to its end.
func keepOriginal(ctx context.Context, env Env, f placed, resuming bool) (bool, error) {
	host, kept := env.Host.FS, backupPath(env, f.Dest)
	digest, err := host.Digest(ctx, f.Dest)
	absent := errors.Is(err, os.ErrNotExist)
	switch {
	case err != nil && !absent:
		return false, err
	case digest == f.SHA256:
		if !resuming {
			return false, nil
		}
		for _, p := range []string{kept, kept + ".absent"} {
			if there, err := host.Exists(p); err != nil || there {
				return there, err
			}
		}
		return false, nil
	}
	if err := host.MkdirAll(path.Dir(kept), 0o700); err != nil {
		return false, err
	}
	if absent { // in an order in which restore never sees the older one alone
		if err := host.WriteFile(ctx, kept+".absent", nil, 0o600); err != nil {
			return false, err
		}
		return true, host.Remove(kept)
	}
	if err := linkOrCopy(ctx, host, f.Dest, kept); err != nil {
		return false, err
	}
	return true, host.Remove(kept + ".absent")
}

// backup keeps a file that a component will rewrite, once a run: what was kept
// before is not overwritten, since what lies at dest now may be the new
// component's already.
func backup(ctx context.Context, env Env, dest string) error {
	host, kept := env.Host.FS, backupPath(env, dest)
	for _, p := range []string{kept, kept + ".absent"} {
		if there, err := host.Exists(p); err != nil || there {
			return err
		}
	}
	if err := host.MkdirAll(path.Dir(kept), 0o700); err != nil {
		return err
	}
	there, err := host.Exists(dest)
	if err != nil {
		return err
	}
	if !there {
		return host.WriteFile(ctx, kept+".absent", nil, 0o600)
	}
	return host.CopyFile(ctx, dest, kept)
}

// restore puts the original of dest back, or removes dest where there was none.
// What was kept is not touched by who writes to dest afterwards.
func restore(ctx context.Context, env Env, dest string) error {
	return putBack(env, dest, func(kept string) error { return env.Host.FS.CopyFile(ctx, kept, dest) })
}

// restoreProgram is restore for what nobody writes to in its place. Where it
// can, it takes no room on the disk.
func restoreProgram(ctx context.Context, env Env, dest string) error {
	return putBack(env, dest, func(kept string) error { return linkOrCopy(ctx, env.Host.FS, kept, dest) })
}

func putBack(env Env, dest string, put func(kept string) error) error {
	kept := backupPath(env, dest)
	absent, err := env.Host.FS.Exists(kept + ".absent")
	if err != nil {
		return err
	}
	if absent {
		return env.Host.FS.Remove(dest)
	}
	return put(kept)
}

// linkOrCopy copies where no link can be made: to another file system, or on one
// that has none.
func linkOrCopy(ctx context.Context, host hostexec.FS, from, to string) error {
	if host.Link(from, to) == nil {
		return nil
	}
	return host.CopyFile(ctx, from, to)
}
