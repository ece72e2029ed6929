// Package hostexectest has strict fakes of the host: what no test has announced
// is a failure, not a silent success.
package hostexectest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

// Units is a systemd that knows the units that it was given. The zero value
// knows none: each call for another unit than Show fails.
type Units struct {
	mu    sync.Mutex
	units map[string]*unit
	// Reloads counts daemon-reloads.
	Reloads int
}

type unit struct {
	hostexec.Unit
	fail           map[string]error // by verb
	started        func(pid int) error
	stopped        func() error
	nextPID        int
	starts, stops  int
	transientStart func(hostexec.Transient) error
	timer          *timer
	killed         func(signal int) error
}

// NewUnits is a systemd with these units.
func NewUnits(units ...hostexec.Unit) *Units {
	f := &Units{units: map[string]*unit{}}
	for _, u := range units {
		f.Put(u)
	}
	return f
}

// Put makes the unit known, or changes what is known of it.
func (f *Units) Put(u hostexec.Unit) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if u.LoadState == "" {
		u.LoadState = "loaded"
	}
	if known, ok := f.units[u.Name]; ok {
		known.Unit = u
		return
	}
	f.units[u.Name] = &unit{Unit: u, fail: map[string]error{}, nextPID: u.MainPID + 1000}
}

// Fail makes the verb ("start", "stop", "show", "start-timer", "stop-transient",
// "kill") of a unit fail with err from now on; nil mends it.
func (f *Units) Fail(verb, name string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.must(name).fail[verb] = err
}

// OnStart runs do at each start of the unit, with the main process's id; its
// error is the job's.
func (f *Units) OnStart(name string, do func(pid int) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.must(name).started = do
}

// OnStop runs do at each stop of the unit; its error is the job's.
func (f *Units) OnStop(name string, do func() error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.must(name).stopped = do
}

// Count is how often a unit was started and stopped so far.
func (f *Units) Count(name string) (starts, stops int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	u := f.must(name)
	return u.starts, u.stops
}

func (f *Units) must(name string) *unit {
	u, ok := f.units[name]
	if !ok {
		panic("hostexectest: no unit " + name)
	}
	return u
}

func (f *Units) known(verb, name string) (*unit, error) {
	u, ok := f.units[name]
	if !ok {
		return nil, fmt.Errorf("hostexectest: unexpected %s of %s; known: %v", verb, name, slices.Sorted(maps.Keys(f.units)))
	}
	return u, u.fail[verb]
}

// Show implements hostexec.Units.
func (f *Units) Show(ctx context.Context, name string) (hostexec.Unit, error) {
	if err := ctx.Err(); err != nil {
		return hostexec.Unit{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	u, ok := f.units[name]
	if !ok {
		return hostexec.Unit{Name: name, LoadState: "not-found", ActiveState: "inactive"}, nil
	}
	return u.Unit, u.fail["show"]
}

// Start implements hostexec.Units.
func (f *Units) Start(ctx context.Context, name string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	f.mu.Lock()
	u, err := f.known("start", name)
	if err != nil {
		f.mu.Unlock()
		return err
	}
	u.starts++
	if u.ActiveState != "active" {
		u.nextPID++
		u.ActiveState, u.SubState, u.MainPID = "active", "running", u.nextPID
	}
	started, pid := u.started, u.MainPID
	f.mu.Unlock()
	if started == nil {
		return nil
	}
	if err := started(pid); err != nil {
		f.mu.Lock()
		u.ActiveState, u.SubState, u.MainPID = "failed", "failed", 0
		f.mu.Unlock()
		return err
	}
	return nil
}

// Stop implements hostexec.Units.
func (f *Units) Stop(ctx context.Context, name string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	f.mu.Lock()
	u, err := f.known("stop", name)
	if err != nil {
		f.mu.Unlock()
		return err
	}
	u.stops++
	u.ActiveState, u.SubState, u.MainPID = "inactive", "dead", 0
	stopped := u.stopped
	f.mu.Unlock()
	if stopped != nil {
		return stopped()
	}
	return nil
}

// Reload implements hostexec.Units.
func (f *Units) Reload(ctx context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.Reloads++
	return ctx.Err()
}

// ResetFailed implements hostexec.Units.
func (f *Units) ResetFailed(ctx context.Context, name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if u, ok := f.units[name]; ok && u.ActiveState == "failed" {
		u.ActiveState = "inactive"
	}
	return ctx.Err()
}

// OnTransient announces that a transient unit of this name may be started; run
// is its process, on a goroutine of its own. While it runs a second start is
// hostexec.ErrUnitExists.
func (f *Units) OnTransient(name string, run func(hostexec.Transient)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	u := &unit{Unit: hostexec.Unit{Name: name, LoadState: "not-found", ActiveState: "inactive"}, fail: map[string]error{}}
	u.transientStart = func(t hostexec.Transient) error {
		if u.ActiveState == "active" {
			return hostexec.ErrUnitExists
		}
		u.LoadState, u.ActiveState, u.Environment = "loaded", "active", t.Env
		go func() {
			run(t)
			f.mu.Lock()
			defer f.mu.Unlock()
			u.LoadState, u.ActiveState, u.Environment = "not-found", "inactive", nil
		}()
		return nil
	}
	f.units[name] = u
}

// StartTransient implements hostexec.Units.
func (f *Units) StartTransient(ctx context.Context, t hostexec.Transient) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	u, ok := f.units[t.Name]
	if !ok || u.transientStart == nil {
		return fmt.Errorf("hostexectest: unexpected transient unit %s", t.Name)
	}
	return u.transientStart(t)
}
