package hostexec

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// A unit that is killed is started again, and one that ended is not; systemd
// refuses a unit that has a property it does not know.
func TestTransientProperties(t *testing.T) {
	got := map[string]any{}
	for _, p := range transientProperties(Transient{Name: "x.service", Argv: []string{"/x"}, Env: []string{"A=b"}, Log: "/log", StopGrace: time.Minute}) {
		got[p.Name] = p.Value.Value()
	}
	for name, want := range map[string]any{
		"Restart": "on-abnormal", "RestartUSec": uint64(1e6), "StartLimitIntervalUSec": uint64(600e6), "StartLimitBurst": uint32(5),
		"KillMode": "mixed", "TimeoutStopUSec": uint64(60e6), "CollectMode": "inactive-or-failed",
	} {
		if diff := cmp.Diff(want, got[name]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestRunning(t *testing.T) {
	for _, tc := range []struct {
		unit Unit
		want bool
	}{
		{Unit{ActiveState: "active", SubState: "running"}, true},
		{Unit{ActiveState: "activating", SubState: "auto-restart", Result: "signal"}, true},
		{Unit{ActiveState: "failed", SubState: "failed", Job: 7}, true}, // its restart has just begun
		{Unit{ActiveState: "failed", SubState: "failed"}, false},
		{Unit{ActiveState: "inactive", SubState: "dead"}, false},
		{Unit{ActiveState: "deactivating", SubState: "stop-sigterm", Job: 8}, false},
		{Unit{}, false},
	} {
		if got := tc.unit.Running(); got != tc.want {
			t.Errorf("%+v is running: %v", tc.unit, got)
		}
	}
}
