package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

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

// save writes the record. A change is written before what it names is started
// or made, where it can be named before.
func (g *Ground) save() error { return writeJSON(recordFile(g.dir), g.record) }

// saveHost writes the record with this process's word on one host, and takes
// other processes' on all others: several may be attached to a ground.
func (g *Ground) saveHost(name string) error {
	if !g.record.Persist {
		return g.save()
	}
	unlock, err := lockFile(context.Background(), filepath.Join(g.dir, "lock"))
	if err != nil {
		return err
	}
	defer unlock()
	if err := g.refresh(name); err != nil {
		return err
	}
	return g.save()
}

// refresh takes over what other processes have written about the hosts, but
// not about the one named.
func (g *Ground) refresh(except string) error {
	now, err := readRecord(g.dir)
	if err != nil {
		return err
	}
	for name, r := range g.record.Hosts {
		if name == except {
			continue
		}
		if other, ok := now.Hosts[name]; ok {
			*r = *other // Hosts point to it
		} else {
			delete(g.record.Hosts, name)
			delete(g.hosts, name)
		}
	}
	for name, other := range now.Hosts {
		if _, ok := g.record.Hosts[name]; !ok && name != except {
			g.record.Hosts[name] = other
			if g.hosts[name], err = g.host(other); err != nil {
				return err
			}
		}
	}
	return nil
}

// lockRun is held while grounds are made, removed or swept.
func lockRun(ctx context.Context) (unlock func(), err error) {
	if err := os.MkdirAll(runDir(), 0o755); err != nil {
		return nil, err
	}
	return lockFile(ctx, filepath.Join(runDir(), "lock"))
}

func lockFile(ctx context.Context, name string) (unlock func(), err error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o644)
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
