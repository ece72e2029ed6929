package steps

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
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
	digest, err := digestOrAbsent(ctx, env.Host.FS, f.Dest)
	if err != nil {
		return false, err
	}
	if digest == f.SHA256 {
		if !resuming {
			return false, nil
		}
		history, err := env.Record.Journal().History()
		_, there := history.kept(f.Dest)
		return there, err
	}
	return true, keepAs(ctx, env, Kept{Path: f.Dest, Before: digest, After: f.SHA256, Linked: true})
}

// backup keeps a file that a component will rewrite, once a run: what was kept
// before is not overwritten, since what lies at dest now may be the new
// component's already.
func backup(ctx context.Context, env Env, dest string) error {
	history, err := env.Record.Journal().History()
	if _, there := history.kept(dest); there || err != nil {
		return err
	}
	return backupAgain(ctx, env, dest)
}

// backupAgain keeps a file as it is now, whatever the run has kept of it before.
func backupAgain(ctx context.Context, env Env, dest string) error {
	digest, err := digestOrAbsent(ctx, env.Host.FS, dest)
	if err != nil {
		return err
	}
	return keepAs(ctx, env, Kept{Path: dest, Before: digest})
}

// keepAs makes the backup, proves it and puts it into the journal.
func keepAs(ctx context.Context, env Env, k Kept) error {
	host, kept := env.Host.FS, backupPath(env, k.Path)
	if err := host.MkdirAll(path.Dir(kept), 0o700); err != nil {
		return err
	}
	if err := keepLink(ctx, env, &k); err != nil {
		return err
	}
	if k.Before == absent { // in an order in which restore never sees the older one alone
		if err := errors.Join(host.WriteFile(ctx, kept+".absent", nil, 0o600), host.Remove(kept)); err != nil {
			return err
		}
	} else {
		var err error
		if k.Linked {
			err = linkOrCopy(ctx, host, k.Path, kept)
		} else {
			err = cloneTarget(ctx, host, k.Path, kept)
		}
		if err != nil {
			return err
		}
		if err := host.Remove(kept + ".absent"); err != nil {
			return err
		}
	}
	if err := sound(ctx, env, k); err != nil {
		return err
	}
	return env.Record.Journal().Append(Entry{Event: EventKeep, Kept: &k})
}

// sound is nil when the backup holds what the journal says that it does.
func sound(ctx context.Context, env Env, k Kept) error {
	kept := backupPath(env, k.Path)
	if k.Before == absent {
		there, err := env.Host.FS.Exists(kept + ".absent")
		if err == nil && !there {
			err = fmt.Errorf("the backup of %s is damaged: %s.absent is not there", k.Path, kept)
		}
		return err
	}
	have, err := digestOrAbsent(ctx, env.Host.FS, kept)
	if err == nil && have != k.Before {
		// A crash may have come between keeping the file anew and its line in
		// the journal: it is as it was kept.
		if now, err := digestOrAbsent(ctx, env.Host.FS, k.Path); err != nil || now == have && now != absent {
			return err
		}
		err = fmt.Errorf("the backup of %s is damaged: %s has sha256 %s, not %s", k.Path, kept, have, k.Before)
	}
	return err
}

// digestOrAbsent is a file's sha256, absent where there is none.
func digestOrAbsent(ctx context.Context, host hostexec.FS, file string) (string, error) {
	digest, err := host.Digest(ctx, file)
	if errors.Is(err, os.ErrNotExist) {
		return absent, nil
	}
	return digest, err
}

// restore puts the original of dest back, or removes dest where there was none.
// What has no original in this run stays as it is. It is idempotent.
func restore(ctx context.Context, env Env, dest string) error {
	history, err := env.Record.Journal().History()
	if err != nil {
		return err
	}
	k, there := history.kept(dest)
	if !there {
		return nil
	}
	return putBack(ctx, env, k.Kept)
}

// putBack is restore for what the journal tells of a file. Where it can, it
// takes no room on the disk.
func putBack(ctx context.Context, env Env, k Kept) error {
	host := env.Host.FS
	if err := sound(ctx, env, k); err != nil {
		return err
	}
	if err := putBackLink(ctx, env, k); err != nil {
		return fmt.Errorf("put back the link %s: %w", k.Path, err)
	}
	if k.Before == absent {
		target, err := host.Target(k.Path)
		if err != nil {
			return err
		}
		return host.Remove(target)
	}
	var err error
	if k.Linked {
		err = linkOrCopy(ctx, host, backupPath(env, k.Path), k.Path)
	} else {
		// What was kept is not touched by who writes to it afterwards.
		err = cloneTarget(ctx, host, backupPath(env, k.Path), k.Path)
	}
	if err != nil {
		return fmt.Errorf("put back %s: %w", k.Path, err)
	}
	return nil
}

// linkOrCopy copies where no link can be made: to another file system, or on one
// that has none.
func linkOrCopy(ctx context.Context, host hostexec.FS, from, to string) error {
	if host.Link(from, to) == nil {
		return nil
	}
	return cloneTarget(ctx, host, from, to)
}

// cloneTarget copies all that a file has. Where one of the two is a link, it is
// what the link leads to that is copied or replaced.
func cloneTarget(ctx context.Context, host hostexec.FS, from, to string) error {
	source, err := host.Target(from)
	if err != nil {
		return err
	}
	target, err := host.Target(to)
	if err != nil {
		return err
	}
	return host.Clone(ctx, source, target)
}

// keepLink keeps the symbolic link that a file is, if it is one: whoever writes
// to the file may put another in the link's place.
func keepLink(ctx context.Context, env Env, k *Kept) error {
	host := env.Host.FS
	info, err := host.Lstat(k.Path)
	if errors.Is(err, os.ErrNotExist) || err == nil && info.Mode()&fs.ModeSymlink == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	if k.Link, err = host.Readlink(k.Path); err != nil {
		return err
	}
	return host.Clone(ctx, k.Path, backupPath(env, k.Path)+".link")
}

// putBackLink makes a file that was a link one again, and one that was none
// none.
func putBackLink(ctx context.Context, env Env, k Kept) error {
	have, err := env.Host.FS.Readlink(k.Path)
	switch {
	case err == nil && have == k.Link, err != nil && k.Link == "": // not there, or no link
		return nil
	case k.Link == "":
		return env.Host.FS.Remove(k.Path)
	default:
		return env.Host.FS.Clone(ctx, backupPath(env, k.Path)+".link", k.Path)
	}
}
