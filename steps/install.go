package steps

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"time"

	"github.com/node-upgrader/node-upgrader/hostexec"
	"github.com/node-upgrader/node-upgrader/image"
)

// placed is a file of the bundle and where it goes on this host, which may be
// another place than the bundle's default.
type placed struct {
	image.File
	Dest string
}

// outdated returns the files whose content on the host is not the bundle's.
func outdated(ctx context.Context, env Env, files []placed) ([]placed, error) {
	var out []placed
	for _, f := range files {
		digest, err := env.Host.FS.Digest(ctx, f.Dest)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		if digest != f.SHA256 {
			out = append(out, f)
		}
	}
	return out, nil
}

// replaceChanges describes the replacement of files, for the plan.
func replaceChanges(files []placed) []Change {
	changes := make([]Change, len(files))
	for i, f := range files {
		changes[i] = Change{Verb: "replace", Object: f.Dest}
	}
	return changes
}

// install keeps the originals of the files and replaces each atomically by the
// bundle's, hashing it again on its way: nothing unverified gets a name on the
// host, and nothing is replaced before all of them lie there. Files that are in
// place already are written again; it is idempotent.
func install(ctx context.Context, env Env, files []placed) error {
	for _, f := range files {
		if _, err := keepOriginal(ctx, env, f, false); err != nil {
			return fmt.Errorf("keep the original of %s: %w", f.Dest, err)
		}
	}
	ready, err := prepare(ctx, env, files)
	defer ready.discard()
	if err != nil {
		return err
	}
	return ready.commit(env)
}

// prepared are files that lie beside their places, complete and on the disk.
type prepared []struct {
	placed
	*hostexec.Prepared
}

// prepare does all of an installation that may fail for want of room, or because
// the bundle was altered: every file has to be discarded or committed.
func prepare(ctx context.Context, env Env, files []placed) (prepared, error) {
	var ready prepared
	for _, f := range files {
		p, err := prepareOne(ctx, env, f)
		if err != nil {
			return ready, fmt.Errorf("install %s: %w", f.Dest, err)
		}
		ready = append(ready, struct {
			placed
			*hostexec.Prepared
		}{f, p})
	}
	return ready, nil
}

func prepareOne(ctx context.Context, env Env, f placed) (*hostexec.Prepared, error) {
	src, err := env.Bundle.OpenFile(f.File)
	if err != nil {
		return nil, err
	}
	defer src.Close()
	if err := env.Host.FS.MkdirAll(path.Dir(f.Dest), 0o755); err != nil {
		return nil, err
	}
	return env.Host.FS.Prepare(ctx, hostexec.Replacement{
		Path: f.Dest, Content: src, SHA256: f.SHA256, Mode: fs.FileMode(f.Mode),
	})
}

func (p prepared) commit(env Env) error {
	for _, f := range p {
		if err := f.Commit(); err != nil {
			return fmt.Errorf("install %s: %w", f.Dest, err)
		}
		env.Log.Info("installed", "file", f.Dest, "sha256", f.SHA256[:12])
	}
	return nil
}

// discard removes what was not committed.
func (p prepared) discard() {
	for _, f := range p {
		f.Discard()
	}
}

// poll asks ready every interval until it returns nil, or ctx ends: the error
// is then the last answer.
func poll(ctx context.Context, env Env, interval time.Duration, ready func(context.Context) error) error {
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil || env.Clock.Sleep(ctx, interval) != nil {
			return fmt.Errorf("%w; last: %w", context.Cause(ctx), err)
		}
	}
}
