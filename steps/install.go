package steps

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
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

// backupPath is where the original of a replaced file is kept. Next to it, a
// file named *.absent stands for an original that was not there.
func backupPath(env Env, dest string) string {
	return env.Record.Path("backup", strings.TrimPrefix(dest, "/"))
}

// backup keeps the original of dest, once a run: an original that was kept
// before is not overwritten, since what lies at dest now may be ours already.
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
func restore(ctx context.Context, env Env, dest string) error {
	host, kept := env.Host.FS, backupPath(env, dest)
	absent, err := host.Exists(kept + ".absent")
	if err != nil {
		return err
	}
	if absent {
		return host.Remove(dest)
	}
	return host.CopyFile(ctx, kept, dest)
}

// install keeps the originals of the files and replaces each atomically by the
// bundle's, hashing it again on its way: nothing unverified gets a name on the
// host. Files that are in place already are written again; it is idempotent.
func install(ctx context.Context, env Env, files []placed) error {
	for _, f := range files {
		if err := backup(ctx, env, f.Dest); err != nil {
			return fmt.Errorf("keep the original of %s: %w", f.Dest, err)
		}
	}
	for _, f := range files {
		if err := installOne(ctx, env, f); err != nil {
			return fmt.Errorf("install %s: %w", f.Dest, err)
		}
		env.Log.Info("installed", "file", f.Dest, "sha256", f.SHA256[:12])
	}
	return nil
}

func installOne(ctx context.Context, env Env, f placed) error {
	src, err := env.Bundle.OpenFile(f.File)
	if err != nil {
		return err
	}
	defer src.Close()
	if err := env.Host.FS.MkdirAll(path.Dir(f.Dest), 0o755); err != nil {
		return err
	}
	return env.Host.FS.Replace(ctx, hostexec.Replacement{
		Path: f.Dest, Content: src, SHA256: f.SHA256, Mode: fs.FileMode(f.Mode),
	})
}

// swap replaces the files of a service that has to be stopped for it: stop,
// replace all, daemon-reload, prepare, start, and then healthy has to return
// nil before ctx ends. When any of it fails, the originals are put back and
// the service is started with them: the error is then a *RolledBackError, or a
// *RollbackError when that failed too. On no way out is the service left
// stopped while it could run.
func swap(ctx context.Context, env Env, s swapped) error {
	// The originals are kept before the service stops, so that a full disk is
	// found while it still runs.
	for _, f := range s.files {
		if err := backup(ctx, env, f.Dest); err != nil {
			return fmt.Errorf("keep the original of %s: %w", f.Dest, err)
		}
	}
	err := func() error {
		env.Log.Info("stopping", "unit", s.unit)
		if err := env.Host.Units.Stop(ctx, s.unit); err != nil {
			return err
		}
		if err := install(ctx, env, s.files); err != nil {
			return err
		}
		return s.start(ctx, env)
	}()
	if err == nil {
		return nil
	}
	env.Log.Error("putting the old files back", "unit", s.unit, "reason", err.Error())
	// The caller's time may be what ran out.
	back, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Minute)
	defer cancel()
	if undo := s.undo(back, env); undo != nil {
		return &RollbackError{Err: err, Rollback: undo}
	}
	return &RolledBackError{Err: err}
}

// swapped is what swap needs to know of a service.
type swapped struct {
	unit    string
	files   []placed
	prepare func(context.Context) error // right before the start; may be nil
	healthy func(context.Context) error // waits; called after the start
	// recovered waits until the old version is healthy after it was put back.
	recovered func(context.Context) error
}

func (s swapped) start(ctx context.Context, env Env) error {
	if err := env.Host.Units.Reload(ctx); err != nil {
		return err
	}
	if s.prepare != nil {
		if err := s.prepare(ctx); err != nil {
			return err
		}
	}
	if err := env.Host.Units.ResetFailed(ctx, s.unit); err != nil {
		return err
	}
	env.Log.Info("starting", "unit", s.unit)
	if err := env.Host.Units.Start(ctx, s.unit); err != nil {
		return err
	}
	return s.healthy(ctx)
}

func (s swapped) undo(ctx context.Context, env Env) error {
	err := env.Host.Units.Stop(ctx, s.unit)
	for _, f := range s.files {
		err = errors.Join(err, restore(ctx, env, f.Dest))
	}
	old := s
	old.healthy = s.recovered
	if s.prepare != nil {
		old.prepare = func(ctx context.Context) error {
			if err := s.prepare(ctx); err != nil { // no reason to leave it stopped
				env.Log.Error("starting all the same", "unit", s.unit, "reason", err.Error())
			}
			return nil
		}
	}
	return errors.Join(err, old.start(ctx, env))
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
