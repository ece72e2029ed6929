package hostexectest

import (
	"context"
	"fmt"
	"sync"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

type timer struct {
	hostexec.Timer
	armed bool
	run   func(hostexec.Transient)
}

// OnTimer announces that a transient timer of this name may be armed and
// disarmed; run is its service's process. Time does not pass by itself: see
// Elapse.
func (f *Units) OnTimer(name string, run func(hostexec.Transient)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	service := hostexec.Timer{Name: name}.ServiceName()
	if service == "" {
		panic("hostexectest: no timer's name: " + name)
	}
	f.units[name] = &unit{
		Unit:  hostexec.Unit{Name: name, LoadState: "not-found", ActiveState: "inactive"},
		fail:  map[string]error{},
		timer: &timer{run: run},
	}
	f.units[service] = &unit{
		Unit: hostexec.Unit{Name: service, LoadState: "not-found", ActiveState: "inactive"},
		fail: map[string]error{},
	}
}

// Armed is the timer that waits under this name.
func (f *Units) Armed(name string) (hostexec.Timer, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := f.must(name).timer
	return t.Timer, t.armed
}

// Elapse lets the time of an armed timer pass: its service's process runs, to
// its end. It panics when the timer is not armed.
func (f *Units) Elapse(name string) {
	f.mu.Lock()
	u := f.must(name)
	if u.timer == nil || !u.timer.armed {
		f.mu.Unlock()
		panic("hostexectest: not armed: " + name)
	}
	service := f.must(u.timer.ServiceName())
	u.timer.armed, u.LoadState, u.ActiveState, u.SubState = false, "not-found", "inactive", "dead"
	t := u.timer.Service
	t.Name = service.Name
	service.LoadState, service.ActiveState, service.SubState, service.Environment = "loaded", "active", "running", t.Env
	f.mu.Unlock()
	u.timer.run(t)
	f.mu.Lock()
	defer f.mu.Unlock()
	service.LoadState, service.ActiveState, service.SubState, service.Environment = "not-found", "inactive", "dead", nil
}

// StartTransientTimer implements hostexec.Units.
func (f *Units) StartTransientTimer(ctx context.Context, t hostexec.Timer) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	u, err := f.known("start-timer", t.Name)
	if err != nil {
		return err
	}
	if u.timer == nil {
		return fmt.Errorf("hostexectest: unexpected timer %s", t.Name)
	}
	if t.After <= 0 || len(t.Service.Argv) == 0 {
		return fmt.Errorf("hostexectest: timer %s: after %s, argv %q", t.Name, t.After, t.Service.Argv)
	}
	if f.must(t.ServiceName()).ActiveState == "active" {
		return hostexec.ErrUnitExists
	}
	u.timer.Timer, u.timer.armed = t, true
	u.LoadState, u.ActiveState, u.SubState = "loaded", "active", "waiting"
	return nil
}

// StopTransient implements hostexec.Units. One that was announced by OnTransient
// and runs has to have an OnStop, which ends its process.
func (f *Units) StopTransient(ctx context.Context, name string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	f.mu.Lock()
	unlocked := sync.OnceFunc(f.mu.Unlock)
	defer unlocked()
	u, err := f.known("stop-transient", name)
	if err != nil {
		return err
	}
	switch {
	case u.timer != nil:
		u.timer.armed = false
		u.LoadState, u.ActiveState, u.SubState = "not-found", "inactive", "dead"
	case u.transientStart == nil, u.ActiveState == "active" && u.stopped == nil:
		return fmt.Errorf("hostexectest: unexpected stop of transient unit %s", name)
	case u.ActiveState == "active":
		u.stops++
		unlocked()
		return u.stopped()
	}
	return nil
}

// OnKill announces that a unit's main process may be sent signals, and what
// becomes of it.
func (f *Units) OnKill(name string, do func(signal int) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.must(name).killed = do
}

// Kill implements hostexec.Units.
func (f *Units) Kill(ctx context.Context, name string, signal int) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	f.mu.Lock()
	u, err := f.known("kill", name)
	f.mu.Unlock()
	if err != nil {
		return err
	}
	if u.killed == nil {
		return fmt.Errorf("hostexectest: unexpected signal %d to %s", signal, name)
	}
	return u.killed(signal)
}
