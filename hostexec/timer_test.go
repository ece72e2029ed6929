package hostexec

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestTimerProperties(t *testing.T) {
	timer := Timer{Name: "x.timer", After: 90 * time.Second, Service: Transient{Description: "what it is for", Argv: []string{"/x"}}}
	got := map[string]string{}
	for _, p := range timerProperties(timer) {
		got[p.Name] = p.Value.String()
	}
	want := map[string]string{
		"Description": `"what it is for"`, "TimersMonotonic": `@a(st) [("OnActiveSec", 90000000,)]`,
		"AccuracyUSec": "@t 1000000", "RemainAfterElapse": "false",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if timer.ServiceName() != "x.service" {
		t.Errorf("service %s", timer.ServiceName())
	}
}

// What systemd would run otherwise than it was given is refused before it is
// asked: this systemd has no bus.
func TestTransientRefusesWhatIsNotKept(t *testing.T) {
	s := NewSystemd(NewFS(t.TempDir()))
	argv := func(words ...string) Transient { return Transient{Name: "x.service", Argv: words} }
	for _, tc := range []struct {
		unit Transient
		want string
	}{
		{argv("/x", "a;b"), `unit x.service: systemd would change the argument "a;b": use one without "$" and ";"`},
		{argv("/x", "$HOME"), `unit x.service: systemd would change the argument "$HOME": use one without "$" and ";"`},
		{argv(), "unit x.service: no command"},
	} {
		if err := s.StartTransient(t.Context(), tc.unit); err == nil || err.Error() != tc.want {
			t.Errorf("%q: %v", tc.unit.Argv, err)
		}
		if err := s.StartTransientTimer(t.Context(), Timer{Name: "x.timer", After: 1, Service: tc.unit}); err == nil || err.Error() != tc.want {
			t.Errorf("timer of %q: %v", tc.unit.Argv, err)
		}
	}
	for _, timer := range []Timer{
		{Name: "x.service", After: 1, Service: argv("/x")},
		{Name: ".timer", After: 1, Service: argv("/x")},
		{Name: "x.timer", Service: argv("/x")},
	} {
		if err := timer.validate(); err == nil {
			t.Errorf("accepted: %+v", timer)
		}
	}
}
