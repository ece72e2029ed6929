package hostexec

import (
	"context"
	"net"
)

// Host is the machine that is upgraded. It is passed by value; its parts are
// safe for concurrent use.
type Host struct {
	FS       FS
	Commands Commands
	Units    Units
}

// Commands runs programs on the host.
type Commands interface {
	// Run runs c and waits for it. A program that cannot be started, or that
	// exits with another code than 0, gives a *CommandError. When ctx ends
	// the program gets SIGTERM and, after c.Grace, SIGKILL; with
	// c.Uninterruptible it is waited for instead.
	Run(ctx context.Context, c Command) (Output, error)
}

// Units is the host's systemd. Each call that queues a job waits until systemd
// reports the job's result; anything but "done" is a *JobError.
type Units interface {
	// Show returns the unit's state. A unit that does not exist is not an
	// error: its LoadState is "not-found".
	Show(ctx context.Context, unit string) (Unit, error)
	Start(ctx context.Context, unit string) error
	Stop(ctx context.Context, unit string) error
	// Reload is `systemctl daemon-reload`.
	Reload(ctx context.Context) error
	// ResetFailed forgets a unit's failure; a unit that has not failed or is
	// not loaded is not an error.
	ResetFailed(ctx context.Context, unit string) error
	// StartTransient starts t as a unit of its own, outside the caller's
	// cgroup. ErrUnitExists when a unit of this name is loaded already.
	StartTransient(ctx context.Context, t Transient) error
	// StartTransientTimer arms t; nobody has to stay for it to fire, and a
	// daemon-reload does not lose it. One of this name that is armed already is
	// replaced; for a moment there is none then. ErrUnitExists while its service
	// runs.
	StartTransientTimer(ctx context.Context, t Timer) error
	// StopTransient stops a transient unit and forgets it; one that is not there
	// is not an error. A timer's service that runs already is another unit, and
	// goes on.
	StopTransient(ctx context.Context, unit string) error
	// Kill sends a signal to the unit's main process alone: containers are in
	// containerd's cgroup too. A unit without one is not an error.
	Kill(ctx context.Context, unit string, signal int) error
}

// Dialer dials a unix socket of the host by its path on the host.
func (fs FS) Dialer(path string) func(ctx context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) {
		real, err := fs.Resolve(path)
		if err != nil {
			return nil, err
		}
		var d net.Dialer
		return d.DialContext(ctx, "unix", real)
	}
}
