package hostexec

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/dbus"
	godbus "github.com/godbus/dbus/v5"
)

// Systemd is the host's systemd, spoken to over its D-Bus system bus. The
// connection is made at the first call, and made again after it broke.
type Systemd struct {
	fs   FS
	mu   sync.Mutex
	conn *dbus.Conn
}

// NewSystemd speaks to the systemd whose bus is on fs.
func NewSystemd(fs FS) *Systemd { return &Systemd{fs: fs} }

// Close ends the connection.
func (s *Systemd) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != nil {
		s.conn.Close()
		s.conn = nil
	}
}

func (s *Systemd) dial() (*dbus.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != nil && s.conn.Connected() {
		return s.conn, nil
	}
	conn, err := dbus.NewConnection(func() (*godbus.Conn, error) {
		path, err := s.fs.Resolve("/run/dbus/system_bus_socket")
		if err != nil {
			return nil, err
		}
		conn, err := godbus.Dial("unix:path=" + path)
		if err != nil {
			return nil, err
		}
		if err := errors.Join(conn.Auth(nil), conn.Hello()); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
		return conn, nil
	})
	if err != nil {
		var op *net.OpError
		if errors.As(err, &op) {
			return nil, fmt.Errorf("connect to systemd (is dbus.service running?): %w", err)
		}
		return nil, fmt.Errorf("connect to systemd: %w", err)
	}
	s.conn = conn
	return conn, nil
}

// job queues a job and waits for its result. reached tells whether a unit
// without a job is as the job was to make it.
func (s *Systemd) job(ctx context.Context, verb, unit string, reached func(Unit) bool, queue func(*dbus.Conn, chan<- string) error) error {
	conn, err := s.dial()
	if err != nil {
		return err
	}
	// Buffered: go-systemd's dispatcher must not block when we stopped waiting.
	result := make(chan string, 1)
	if err := replied(ctx, func() error { return queue(conn, result) }); err != nil {
		return fmt.Errorf("%s %s: %w", verb, unit, err)
	}
	return await(ctx, verb, unit, result, jobTick, func() (bool, error) {
		u, err := s.Show(ctx, unit) // on a new connection where that one broke
		if err != nil {
			return false, nil //nolint:nilerr // the bus may come back until ctx ends
		}
		return settled(verb, u, reached)
	})
}

// settled tells from a unit whether the job that was queued for it is done.
func settled(verb string, u Unit, reached func(Unit) bool) (bool, error) {
	switch {
	case u.Job != 0:
		return false, nil
	case reached(u):
		return true, nil
	case u.ActiveState == "failed":
		return false, &JobError{Verb: verb, Unit: u.Name, Result: "failed"}
	default:
		return false, nil
	}
}

// jobTick is how often a job's unit is looked at while its result is awaited.
const jobTick = 2 * time.Second

// await waits for a job's result. That is a signal, which is lost when the bus
// or systemd itself is restarted meanwhile; so what became of the unit is asked
// now and then.
func await(ctx context.Context, verb, unit string, result <-chan string, every time.Duration, look func() (bool, error)) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case r := <-result:
			if r != "done" {
				return &JobError{Verb: verb, Unit: unit, Result: r}
			}
			return nil
		case <-tick.C:
			if len(result) > 0 {
				continue // it says more than the unit
			}
			if done, err := look(); done || err != nil {
				return err
			}
		case <-ctx.Done():
			return fmt.Errorf("%s %s: no result from systemd: %w", verb, unit, context.Cause(ctx))
		}
	}
}

func isActive(u Unit) bool  { return u.ActiveState == "active" || u.ActiveState == "reloading" }
func isStopped(u Unit) bool { return u.ActiveState == "inactive" || u.ActiveState == "failed" }

// Start implements Units.
func (s *Systemd) Start(ctx context.Context, unit string) error {
	return s.job(ctx, "start", unit, isActive, func(c *dbus.Conn, ch chan<- string) error {
		_, err := c.StartUnitContext(ctx, unit, "replace", ch)
		return err
	})
}

// Stop implements Units.
func (s *Systemd) Stop(ctx context.Context, unit string) error {
	return s.job(ctx, "stop", unit, isStopped, func(c *dbus.Conn, ch chan<- string) error {
		_, err := c.StopUnitContext(ctx, unit, "replace", ch)
		return err
	})
}

// Reload implements Units.
func (s *Systemd) Reload(ctx context.Context) error {
	conn, err := s.dial()
	if err != nil {
		return err
	}
	if err := replied(ctx, func() error { return conn.ReloadContext(ctx) }); err != nil {
		return fmt.Errorf("daemon-reload: %w", err)
	}
	return nil
}

// ResetFailed implements Units.
func (s *Systemd) ResetFailed(ctx context.Context, unit string) error {
	conn, err := s.dial()
	if err != nil {
		return err
	}
	err = replied(ctx, func() error { return conn.ResetFailedUnitContext(ctx, unit) })
	if isDBusError(err, noSuchUnit) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reset-failed %s: %w", unit, err)
	}
	return nil
}

// Show implements Units.
func (s *Systemd) Show(ctx context.Context, unit string) (Unit, error) {
	conn, err := s.dial()
	if err != nil {
		return Unit{}, err
	}
	var p map[string]any
	err = replied(ctx, func() (err error) {
		p, err = conn.GetAllPropertiesContext(ctx, unit)
		return err
	})
	if err != nil {
		return Unit{}, fmt.Errorf("show %s: %w", unit, err)
	}
	u := Unit{
		Name: unit, LoadState: get[string](p, "LoadState"), ActiveState: get[string](p, "ActiveState"),
		SubState: get[string](p, "SubState"), Result: get[string](p, "Result"), Fragment: get[string](p, "FragmentPath"),
		DropIns: get[[]string](p, "DropInPaths"), Environment: get[[]string](p, "Environment"),
		KillMode: get[string](p, "KillMode"), MainPID: int(get[uint32](p, "MainPID")),
		ExitStatus: int(get[int32](p, "ExecMainStatus")), Restarts: get[uint32](p, "NRestarts"),
	}
	if job := get[[]any](p, "Job"); len(job) > 0 { // (uo): its number, 0 for none, and its path
		u.Job, _ = job[0].(uint32)
	}
	for _, e := range get[[][]any](p, "ExecStart") { // a(sasbttttuii): path, argv, ignore errors, …
		if len(e) > 1 {
			if argv, ok := e[1].([]string); ok {
				u.ExecStart = append(u.ExecStart, argv)
			}
		}
	}
	for _, e := range get[[][]any](p, "EnvironmentFiles") { // a(sb): path, ignore errors
		if path, ok := e[0].(string); ok {
			optional, _ := e[1].(bool)
			u.EnvFiles = append(u.EnvFiles, EnvFile{Path: path, Optional: optional})
		}
	}
	return u, nil
}

func get[T any](p map[string]any, name string) T {
	v, _ := p[name].(T)
	return v
}
