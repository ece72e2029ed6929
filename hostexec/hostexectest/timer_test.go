package hostexectest_test

import (
	"errors"
	"testing"
	"time"

	"github.com/node-upgrader/node-upgrader/hostexec"
	"github.com/node-upgrader/node-upgrader/hostexec/hostexectest"
)

func TestTimer(t *testing.T) {
	ctx := t.Context()
	units := hostexectest.NewUnits()
	timer := hostexec.Timer{Name: "deadman.timer", After: time.Minute, Service: hostexec.Transient{Argv: []string{"/upgrader", "rollback"}}}
	if err := units.StartTransientTimer(ctx, timer); err == nil {
		t.Error("an unexpected timer was armed")
	}
	if err := units.StopTransient(ctx, timer.Name); err == nil {
		t.Error("an unexpected timer was disarmed")
	}
	var ran []string
	units.OnTimer(timer.Name, func(s hostexec.Transient) {
		ran = append(ran, s.Name)
		if err := units.StartTransientTimer(ctx, timer); !errors.Is(err, hostexec.ErrUnitExists) {
			t.Errorf("armed while its service runs: %v", err)
		}
	})
	state := func() string {
		u, err := units.Show(ctx, timer.Name)
		if _, armed := units.Armed(timer.Name); err != nil || armed != u.Exists() {
			t.Errorf("%+v, armed %v, %v", u, armed, err)
		}
		return u.ActiveState
	}
	for _, do := range []struct {
		what string
		do   func() error
		want string
	}{
		{"disarm what is not there", func() error { return units.StopTransient(ctx, timer.Name) }, "inactive"},
		{"arm", func() error { return units.StartTransientTimer(ctx, timer) }, "active"},
		{"arm again", func() error { return units.StartTransientTimer(ctx, timer) }, "active"},
		{"disarm", func() error { return units.StopTransient(ctx, timer.Name) }, "inactive"},
		{"arm", func() error { return units.StartTransientTimer(ctx, timer) }, "active"},
		{"fire", func() error { units.Elapse(timer.Name); return nil }, "inactive"},
	} {
		if err := do.do(); err != nil || state() != do.want {
			t.Errorf("%s: %v, %s", do.what, err, state())
		}
	}
	if len(ran) != 1 || ran[0] != "deadman.service" {
		t.Errorf("ran %v", ran)
	}
}

func TestStopTransient(t *testing.T) {
	units := hostexectest.NewUnits()
	end, ended := make(chan struct{}), make(chan struct{})
	units.OnTransient("upgrader.service", func(hostexec.Transient) { <-end; close(ended) })
	if err := units.StopTransient(t.Context(), "upgrader.service"); err != nil {
		t.Errorf("one that is not there: %v", err)
	}
	if err := units.StartTransient(t.Context(), hostexec.Transient{Name: "upgrader.service"}); err != nil {
		t.Fatal(err)
	}
	if units.StopTransient(t.Context(), "upgrader.service") == nil {
		t.Error("an unexpected stop")
	}
	units.OnStop("upgrader.service", func() error { close(end); <-ended; return nil })
	if err := units.StopTransient(t.Context(), "upgrader.service"); err != nil {
		t.Error(err)
	}
}

func TestKill(t *testing.T) {
	units := hostexectest.NewUnits(hostexec.Unit{Name: "kubelet.service"})
	if units.Kill(t.Context(), "kubelet.service", 9) == nil {
		t.Error("an unexpected signal was sent")
	}
	var got int
	units.OnKill("kubelet.service", func(signal int) error { got = signal; return nil })
	if err := units.Kill(t.Context(), "kubelet.service", 9); err != nil || got != 9 {
		t.Errorf("signal %d, %v", got, err)
	}
}
