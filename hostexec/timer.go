package hostexec

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/coreos/go-systemd/v22/dbus"
	godbus "github.com/godbus/dbus/v5"
)

// Timer starts a service of its own, once, after a time. Both units are
// transient: they live in /run and are gone after a boot.
type Timer struct {
	Name string // with .timer; the service has the same name with .service
	// After is counted from the start of the timer, by a clock that does not
	// jump; it is kept to a second.
	After time.Duration
	// Service is what is started. Its own name is not used.
	Service Transient
}

// ServiceName is the service that the timer starts.
func (t Timer) ServiceName() string {
	const suffix = ".timer"
	if len(t.Name) <= len(suffix) || t.Name[len(t.Name)-len(suffix):] != suffix {
		return ""
	}
	return t.Name[:len(t.Name)-len(suffix)] + ".service"
}

func (t Timer) validate() error {
	switch {
	case t.ServiceName() == "":
		return fmt.Errorf("timer %q: its name has to end in .timer", t.Name)
	case t.After <= 0:
		return fmt.Errorf("timer %s: nothing to wait for in %s", t.Name, t.After)
	default:
		service := t.Service
		service.Name = t.ServiceName()
		return service.validate()
	}
}

const (
	timerAccuracy = time.Second
	// A unit that was stopped is forgotten a moment later.
	forgetTick     = 20 * time.Millisecond
	forgetPatience = 5 * time.Second
)

// StartTransientTimer implements Units.
func (s *Systemd) StartTransientTimer(ctx context.Context, t Timer) error {
	if err := t.validate(); err != nil {
		return err
	}
	// systemd changes no unit that is loaded.
	if err := s.StopTransient(ctx, t.Name); err != nil {
		return err
	}
	service := t.Service
	service.Name = t.ServiceName()
	aux := []dbus.PropertyCollection{{Name: service.Name, Properties: transientProperties(service)}}
	deadline := time.Now().Add(forgetPatience)
	for {
		err := s.job(ctx, "start", t.Name, isActive, func(c *dbus.Conn, ch chan<- string) error {
			_, err := c.StartTransientUnitAux(ctx, t.Name, "fail", timerProperties(t), aux, ch)
			return err
		})
		if !isDBusError(err, unitExists) {
			return err
		}
		u, err := s.Show(ctx, service.Name)
		if err != nil {
			return err
		}
		if u.Running() || u.ActiveState == "deactivating" || time.Now().After(deadline) {
			return fmt.Errorf("%s: %w", service.Name, ErrUnitExists)
		}
		select {
		case <-time.After(forgetTick):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func timerProperties(t Timer) []dbus.Property {
	type monotonic struct {
		Base string
		USec uint64
	}
	usec := func(d time.Duration) uint64 { return uint64(d.Microseconds()) } //nolint:gosec // positive
	return []dbus.Property{
		dbus.PropDescription(t.Service.Description),
		{Name: "TimersMonotonic", Value: godbus.MakeVariant([]monotonic{{"OnActiveSec", usec(t.After)}})},
		{Name: "AccuracyUSec", Value: godbus.MakeVariant(usec(timerAccuracy))},
		// It is forgotten when its service has ended.
		{Name: "RemainAfterElapse", Value: godbus.MakeVariant(false)},
	}
}

// StopTransient implements Units.
func (s *Systemd) StopTransient(ctx context.Context, unit string) error {
	err := s.Stop(ctx, unit)
	if isDBusError(err, noSuchUnit) {
		return nil
	}
	if err != nil {
		return err
	}
	return s.ResetFailed(ctx, unit)
}

// Kill implements Units.
func (s *Systemd) Kill(ctx context.Context, unit string, signal int) error {
	conn, err := s.dial()
	if err != nil {
		return err
	}
	err = conn.KillUnitWithTarget(ctx, unit, dbus.Main, int32(signal)) //nolint:gosec // at most 64
	if isDBusError(err, noSuchUnit) || isDBusError(err, noSuchProcess) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("kill %s: %w", unit, err)
	}
	return nil
}

// The names of systemd's errors.
const (
	unitExists    = "org.freedesktop.systemd1.UnitExists"
	noSuchUnit    = "org.freedesktop.systemd1.NoSuchUnit"
	noSuchProcess = "org.freedesktop.systemd1.NoSuchProcess"
)

func isDBusError(err error, name string) bool {
	var e godbus.Error
	return errors.As(err, &e) && e.Name == name
}
