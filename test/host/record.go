package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/node-upgrader/node-upgrader/test/cache"
)

// record is what a ground has started and made: the file ground.json in its
// directory. Only what it names is ever ended or removed.
type record struct {
	BootID  string                 `json:"bootID"`
	Persist bool                   `json:"persist"`
	LAN     process                `json:"lan"`
	Hosts   map[string]*hostRecord `json:"hosts"`
}

type hostRecord struct {
	Name    string   `json:"name"`
	IP      string   `json:"ip"`
	Disk    string   `json:"disk"`
	Keeper  process  `json:"keeper"`
	Init    process  `json:"init"`
	Cgroups []string `json:"cgroups"`
}

// runDir holds a directory for each ground, kernel.json and a lock.
func runDir() string               { return filepath.Join(cache.Root(), "run") }
func kernelFile() string           { return filepath.Join(runDir(), "kernel.json") }
func recordFile(dir string) string { return filepath.Join(dir, "ground.json") }
func ownerFile(dir string) string  { return filepath.Join(dir, "owner") }

func readRecord(dir string) (record, error) {
	var r record
	data, err := os.ReadFile(recordFile(dir))
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return r, fmt.Errorf("%s: %w", recordFile(dir), err)
	}
	return r, nil
}

// lockRun is held while grounds are made, removed or swept.
func lockRun(ctx context.Context) (unlock func(), err error) {
	if err := os.MkdirAll(runDir(), 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(runDir(), "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// end ends a host's processes and removes its cgroups.
func (r *hostRecord) end() error {
	// The keeper last: it reaps PID 1. Killing PID 1 kills its namespace.
	if err := errors.Join(r.Init.kill(), r.Keeper.kill()); err != nil {
		return fmt.Errorf("host %s: %w", r.Name, err)
	}
	if err := removeCgroups(r.Cgroups); err != nil {
		return fmt.Errorf("host %s: %w", r.Name, err)
	}
	r.Init, r.Keeper, r.Cgroups = process{}, process{}, nil
	return nil
}

// end ends everything of a ground, but not the process self.
func (r *record) end(self int) error {
	if r.BootID != bootID() {
		return nil // the machine was restarted: all of it is gone
	}
	var errs []error
	for _, h := range r.Hosts {
		errs = append(errs, h.end())
	}
	if r.LAN.PID != self {
		errs = append(errs, r.LAN.kill())
	}
	return errors.Join(errs...)
}

// Sweep ends and removes what processes that were killed have left: every
// ground that is not persistent and whose owner is gone, and persistent ones
// from before the machine's last start. Open does it too.
func Sweep() error {
	unlock, err := lockRun(context.Background())
	if err != nil {
		return err
	}
	defer unlock()
	return sweep()
}

func sweep() error {
	dirs, err := groundDirs()
	if err != nil {
		return err
	}
	var errs []error
	for _, dir := range dirs {
		errs = append(errs, sweepGround(dir))
	}
	return errors.Join(append(errs, restoreIfLast())...)
}

func sweepGround(dir string) error {
	r, err := readRecord(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist): // killed before it had started anything
		return removeTree(dir)
	case err != nil:
		return err
	case r.Persist && r.BootID == bootID():
		return nil
	}
	if !r.Persist {
		owner, err := os.OpenFile(ownerFile(dir), os.O_CREATE|os.O_RDWR, 0o644)
		if err != nil {
			return err
		}
		defer owner.Close()
		if unix.Flock(int(owner.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
			return nil // its owner is alive
		}
	}
	if err := r.end(os.Getpid()); err != nil {
		return err
	}
	return removeTree(dir)
}

// restoreIfLast puts the kernel's settings back when no ground is left.
func restoreIfLast() error {
	dirs, err := groundDirs()
	if err != nil || len(dirs) > 0 {
		return err
	}
	return restoreKernel("/proc/sys", kernelFile())
}

func groundDirs() ([]string, error) {
	entries, err := os.ReadDir(runDir())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var dirs []string
	for _, e := range entries {
		if e.IsDir() {
			dirs = append(dirs, filepath.Join(runDir(), e.Name()))
		}
	}
	return dirs, nil
}

// Grounds lists the names of the persistent grounds.
func Grounds() ([]string, error) {
	dirs, err := groundDirs()
	if err != nil {
		return nil, err
	}
	var found []string
	for _, dir := range dirs {
		if r, err := readRecord(dir); err == nil && r.Persist && r.BootID == bootID() {
			found = append(found, filepath.Base(dir))
		}
	}
	return found, nil
}

// removeTree removes a directory, but never reaches through a mount: there
// should be none, mounts are made in the hosts' namespaces only.
func removeTree(dir string) error {
	mounts, err := mountinfo.GetMounts(func(i *mountinfo.Info) (skip, stop bool) {
		return i.Mountpoint != dir && !strings.HasPrefix(i.Mountpoint, dir+"/"), false
	})
	if err != nil {
		return err
	}
	if len(mounts) > 0 {
		return fmt.Errorf("remove %s: %s is mounted", dir, mounts[0].Mountpoint)
	}
	return os.RemoveAll(dir)
}
