package hostexec

import (
	"context"
	"errors"
	"testing"
	"time"
)

// The result of a job is a signal, which gets lost with the bus; the unit
// tells then what became of it.
func TestAwaitLooksAtTheUnit(t *testing.T) {
	failed := &JobError{Verb: "start", Unit: "x.service", Result: "failed"}
	for _, tc := range []struct {
		name   string
		result string // of the signal; "": lost
		units  []Unit // at each look
		want   error
	}{
		{"a result", "done", []Unit{{ActiveState: "activating", Job: 1}}, nil},
		{"a bad result", "failed", nil, failed},
		{"lost, and well", "", []Unit{{}, {ActiveState: "activating", Job: 1}, {ActiveState: "active", Job: 1}, {ActiveState: "active"}}, nil},
		{"lost, and failed", "", []Unit{{ActiveState: "activating", Job: 1}, {ActiveState: "failed"}}, failed},
		{"lost, and restarting", "", []Unit{{ActiveState: "activating"}, {ActiveState: "failed", Job: 2}, {ActiveState: "active"}}, nil},
		{"lost, and never up", "", []Unit{{ActiveState: "inactive"}}, context.DeadlineExceeded},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			result := make(chan string, 1)
			if tc.result != "" {
				result <- tc.result
			}
			looks := 0
			err := await(ctx, "start", "x.service", result, time.Millisecond, func() (bool, error) {
				u := tc.units[min(looks, len(tc.units)-1)]
				looks++
				return settled("start", u, isActive)
			})
			var got, want *JobError
			if errors.As(tc.want, &want) {
				if !errors.As(err, &got) || got.Result != want.Result {
					t.Errorf("got %v, want %v", err, tc.want)
				}
			} else if !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
		})
	}
	for _, u := range []Unit{{ActiveState: "inactive"}, {ActiveState: "failed"}} {
		if done, err := settled("stop", u, isStopped); !done || err != nil {
			t.Errorf("stopped as %+v: %v, %v", u, done, err)
		}
	}
}
