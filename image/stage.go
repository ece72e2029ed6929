package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// StageOptions say where and how a bundle is staged.
type StageOptions struct {
	Store    string // directory of all stages; made with mode 0700
	Upgrader string // the running executable; may be /proc/self/exe or /proc/self/fd/N
	BootID   string // /proc/sys/kernel/random/boot_id; "" trusts no stamp
	// Progress may be nil. It is called by one goroutine at a time, and not at
	// all when nothing is copied.
	Progress func(done, total int64)
	// Effect, when it is set, is called right before each change in the store, by
	// any goroutine: its error is the change's own. path is where the change will
	// be seen when the stage is whole.
	Effect func(op, path string) error
}

// change tells of a change that is about to be made.
func (o StageOptions) change(op string, path ...string) error {
	if o.Effect == nil {
		return nil
	}
	return o.Effect(op, filepath.Join(path...))
}

// Stage puts a bundle and the upgrader into the store and checks every byte of
// the bundle on the way. A stage that is there and sound is kept; only its
// upgrader is replaced when it is not the running one. One that is not sound is
// made anew.
//
// What is wrong with b is a *BadBundleError, and the store holds nothing of it.
// Killed at any instant, the store has the whole stage or a leftover that the
// next call removes. Calls on one store wait for each other, until ctx ends.
func Stage(ctx context.Context, b *Bundle, o StageOptions) (Staged, error) {
	s, err := stage(ctx, b, o)
	if err != nil {
		return Staged{}, fmt.Errorf("stage bundle: %w", err)
	}
	return s, nil
}

func stage(ctx context.Context, b *Bundle, o StageOptions) (Staged, error) {
	dir, err := stageDir(o.Store, b.Digest)
	if err != nil {
		return Staged{}, err
	}
	unlock, err := lockStore(ctx, o.Store)
	if err != nil {
		return Staged{}, err
	}
	defer unlock()
	if err := removeLeftovers(o, o.Store); err != nil {
		return Staged{}, err
	}
	s, now, err := findStaged(ctx, dir, b.Digest, o.BootID)
	if errors.Is(err, ErrNotStaged) {
		return stageAnew(ctx, b, o, dir)
	}
	if err != nil {
		return Staged{}, err
	}
	if err := removeLeftovers(o, dir); err != nil {
		return Staged{}, err
	}
	pair, changed, err := renewUpgrader(ctx, o, dir, now.Upgrader)
	if err != nil {
		return Staged{}, err
	}
	resigned, err := renewSignature(o, b, dir, s, &now)
	if err != nil {
		return Staged{}, err
	}
	if changed || resigned || !s.Trusted {
		now.Upgrader = pair
		if err := o.change("write", dir, stampName); err != nil {
			return Staged{}, err
		}
		if err := now.write(dir); err != nil {
			return Staged{}, err
		}
	}
	s.Trusted = true
	return s, nil
}

// stageAnew makes the whole stage beside its final place and moves it there.
func stageAnew(ctx context.Context, b *Bundle, o StageOptions, dir string) (s Staged, err error) {
	if sameDir(b.Dir, filepath.Join(dir, stagedBundle)) {
		return s, &BadBundleError{
			ManifestName, "is the stage itself, which is not sound",
			"stage the bundle from where it came from",
		}
	}
	// A bundle that was not opened just now may have changed.
	if _, err := Open(b.Dir); err != nil {
		return s, err
	}
	if err := o.change("mkdir", dir); err != nil {
		return s, err
	}
	tmp, err := os.MkdirTemp(o.Store, tempPrefix)
	if err != nil {
		return s, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(tmp))
		}
	}()
	exe, err := openUpgrader(o.Upgrader)
	if err != nil {
		return s, err
	}
	defer exe.Close()
	count := newMeter(b.Manifest.size()+exe.size(), o.Progress)
	mark := stamp{SchemaVersion: SchemaVersion, BootID: o.BootID}
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		err := o.change("write", dir, stagedUpgrader)
		if err == nil {
			mark.Upgrader, err = exe.copyTo(gctx, tmp, count)
		}
		return err
	})
	g.Go(func() error {
		return copyBundle(gctx, b, filepath.Join(tmp, stagedBundle), count, func(name string) error {
			return o.change("write", dir, stagedBundle, name)
		})
	})
	if err := g.Wait(); err != nil {
		return s, err
	}
	copied, err := Open(filepath.Join(tmp, stagedBundle))
	if err != nil {
		return s, err
	}
	seen, err := copied.look()
	if err != nil {
		return s, err
	}
	mark.Files = allLooks(seen)
	if err := o.change("write", dir, stampName); err != nil {
		return s, err
	}
	if err := mark.write(tmp); err != nil {
		return s, err
	}
	if err := ctx.Err(); err != nil {
		return s, err
	}
	if err := discard(o, dir); err != nil {
		return s, err
	}
	if err := o.change("rename", dir); err != nil {
		return s, err
	}
	if err := os.Rename(tmp, dir); err != nil {
		return s, err
	}
	copied.Dir = filepath.Join(dir, stagedBundle)
	s = Staged{Bundle: copied, Upgrader: filepath.Join(dir, stagedUpgrader), Copied: true, Trusted: true}
	return s, syncDir(o.Store)
}

func sameDir(a, b string) bool {
	x, err := os.Stat(a)
	if err != nil {
		return false
	}
	y, err := os.Stat(b)
	return err == nil && os.SameFile(x, y)
}

// discard removes an unsound stage, out of its place first: half removed it
// would be there still.
func discard(o StageOptions, dir string) error {
	if _, err := os.Lstat(dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err := o.change("rename", dir+" away"); err != nil {
		return err
	}
	old := filepath.Join(filepath.Dir(dir), tempPrefix+"old-"+filepath.Base(dir))
	if err := os.Rename(dir, old); err != nil {
		return err
	}
	if err := o.change("remove-all", dir); err != nil {
		return err
	}
	return os.RemoveAll(old)
}

// lockStore makes the store if need be and keeps other stagings out until
// unlock is called or the process ends.
func lockStore(ctx context.Context, store string) (unlock func(), err error) {
	if err := os.MkdirAll(store, 0o700); err != nil {
		return nil, err
	}
	d, err := os.Open(store)
	if err != nil {
		return nil, err
	}
	if fi, err := d.Stat(); err != nil || fi.Mode().Perm() != 0o700 {
		if err = errors.Join(err, d.Chmod(0o700)); err != nil {
			_ = d.Close()
			return nil, err
		}
	}
	for {
		err := unix.Flock(int(d.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = d.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			_ = d.Close()
			return nil, fmt.Errorf("lock %s: %w", store, err)
		}
		select {
		case <-ctx.Done():
			_ = d.Close()
			return nil, fmt.Errorf("another upgrader is staging in %s: %w", store, ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}
