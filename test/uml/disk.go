package uml

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/node-upgrader/node-upgrader/test/cache"
)

// disk is a directory with all of one machine:
//
//	disk.cow     what differs from the image
//	disk.json    which image that is
//	exchange/    what the guest sees through hostfs
//	console.log  of the last boot
//	lock         held by the process whose machine it is
type disk struct {
	dir  string
	lock *os.File
	diskInfo
}

type diskInfo struct {
	Image string `json:"image"`
}

func (d disk) path(name string) string { return filepath.Join(d.dir, name) }

// newDisk makes a disk on an image, or from a snapshot, and removes those of
// processes that are gone.
func newDisk(spec Spec) (d disk, err error) {
	all := filepath.Join(cache.Root(), "uml-run")
	if err := os.MkdirAll(all, 0o755); err != nil {
		return d, err
	}
	// A directory is nobody's for the moment before its lock is held.
	unlock, err := lock(filepath.Join(all, ".lock"), unix.LOCK_EX)
	if err != nil {
		return d, err
	}
	defer unlock.Close()
	if err := sweep(all); err != nil {
		return d, err
	}
	if d.dir, err = os.MkdirTemp(all, spec.Name+"-"); err != nil {
		return d, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.remove())
		}
	}()
	if d.lock, err = lock(d.path("lock"), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return d, err
	}
	d.Image = spec.Image
	if spec.From != "" {
		data, err := os.ReadFile(filepath.Join(spec.From, "disk.json"))
		if err != nil {
			return d, fmt.Errorf("not a snapshot: %w", err)
		}
		if err := json.Unmarshal(data, &d.diskInfo); err != nil {
			return d, fmt.Errorf("%s: %w", spec.From, err)
		}
		if err := copySparse(filepath.Join(spec.From, "disk.cow"), d.path("disk.cow")); err != nil {
			return d, err
		}
	}
	if _, err := os.Stat(d.Image); err != nil {
		return d, fmt.Errorf("disk image: %w", err)
	}
	return d, os.Mkdir(d.path("exchange"), 0o755)
}

// sweep removes the directories that no process holds.
func sweep(all string) error {
	entries, err := os.ReadDir(all)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		dir := filepath.Join(all, e.Name())
		held, err := lock(filepath.Join(dir, "lock"), unix.LOCK_EX|unix.LOCK_NB)
		if errors.Is(err, unix.EWOULDBLOCK) {
			continue
		}
		if err == nil {
			err = os.RemoveAll(dir)
			held.Close()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func lock(name string, how int) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), how); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", name, err)
	}
	return f, nil
}

func (d disk) remove() error {
	err := os.RemoveAll(d.dir)
	if d.lock != nil {
		d.lock.Close()
	}
	return err
}

func (d disk) snapshot(dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	data, err := json.Marshal(d.diskInfo)
	if err != nil {
		return err
	}
	err = os.WriteFile(filepath.Join(dir, "disk.json"), data, 0o644)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("never booted: %w", err)
	}
	return errors.Join(err, copySparse(d.path("disk.cow"), filepath.Join(dir, "disk.cow")))
}

func copySparse(from, to string) error {
	_, err := run(context.Background(), "", "cp", "--sparse=always", "--reflink=auto", from, to)
	return err
}
