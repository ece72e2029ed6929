package hostexec

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/dbus"
	godbus "github.com/godbus/dbus/v5"
)

// A transient unit that was killed is started again, but not for ever: what
// kills it may be its own doing.
const (
	restartDelay  = time.Second
	restartWindow = 10 * time.Minute
	restartBurst  = 5 // starts in the window, the first one included
)

// StartTransient implements Units.
func (s *Systemd) StartTransient(ctx context.Context, t Transient) error {
	if err := t.validate(); err != nil {
		return err
	}
	err := s.job(ctx, "start", t.Name, started, func(c *dbus.Conn, ch chan<- string) error {
		_, err := c.StartTransientUnitContext(ctx, t.Name, "fail", transientProperties(t), ch)
		return err
	})
	if isDBusError(err, unitExists) {
		return ErrUnitExists
	}
	return err
}

// validate refuses what would not be run as it is. systemd replaces variables in
// words, and at a daemon-reload it reads the words from a file in which it has
// put a backslash before each "$" and ";", and up to version 253 keeps that.
func (t Transient) validate() error {
	if len(t.Argv) == 0 {
		return fmt.Errorf("unit %s: no command", t.Name)
	}
	for _, word := range t.Argv {
		if strings.ContainsAny(word, "$;") {
			return fmt.Errorf(`unit %s: systemd would change the argument %q: use one without "$" and ";"`, t.Name, word)
		}
	}
	return nil
}

// started is a transient unit whose process may have ended already.
func started(u Unit) bool { return u.ActiveState != "failed" }

func transientProperties(t Transient) []dbus.Property {
	property := func(name string, value any) dbus.Property {
		return dbus.Property{Name: name, Value: godbus.MakeVariant(value)}
	}
	usec := func(d time.Duration) uint64 { return uint64(d.Microseconds()) } //nolint:gosec // positive
	return []dbus.Property{
		dbus.PropDescription(t.Description),
		dbus.PropExecStart(t.Argv, false),
		dbus.PropType("exec"),
		property("Environment", t.Env),
		property("StandardOutputFileToAppend", t.Log),
		property("StandardErrorFileToAppend", t.Log),
		// SIGTERM goes to the upgrader alone: what it runs (kubeadm) must
		// finish. SIGKILL, after the grace, to all that is left.
		property("KillMode", "mixed"),
		property("TimeoutStopUSec", usec(t.StopGrace)),
		property("CollectMode", "inactive-or-failed"),
		// Nothing in an upgrade may be the first to go when memory is short.
		property("OOMScoreAdjust", int32(-900)),
		// SIGKILL may come while a service of the node is stopped, and nobody
		// else would start that again. An exit, whatever its code, is an end,
		// and so is `systemctl stop`.
		property("Restart", "on-abnormal"),
		property("RestartUSec", usec(restartDelay)),
		property("StartLimitIntervalUSec", usec(restartWindow)),
		property("StartLimitBurst", uint32(restartBurst)),
	}
}
