package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

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
