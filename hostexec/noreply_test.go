package hostexec

import (
	"context"
	"errors"
	"fmt"
	"testing"

	godbus "github.com/godbus/dbus/v5"
)

func TestReplied(t *testing.T) {
	gone := fmt.Errorf("stop x: %w", godbus.Error{Name: noReply, Body: []any{"Message recipient disconnected from message bus without replying"}})
	other := errors.New("no such unit")
	for name, answers := range map[string][]error{
		"answers":               {nil},
		"comes back":            {gone, gone, nil},
		"comes back, and minds": {gone, other},
	} {
		asked := 0
		err := replied(t.Context(), func() error { asked++; return answers[asked-1] })
		if want := answers[len(answers)-1]; !errors.Is(err, want) || asked != len(answers) {
			t.Errorf("%s: asked %d times: %v", name, asked, err)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	asked := 0
	if err := replied(ended, func() error { asked++; return gone }); !isDBusError(err, noReply) || asked != 1 {
		t.Errorf("asked %d times: %v", asked, err)
	}
}
