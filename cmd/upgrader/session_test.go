package main

import (
	"errors"
	"testing"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

// What cannot be run from a container is told apart from what failed there.
func TestNoCommandsSaysWhy(t *testing.T) {
	var refused *hostexec.CommandError
	_, err := noCommands{}.Run(t.Context(), hostexec.Command{Argv: []string{"/bin/true"}})
	if !errors.Is(err, hostexec.ErrNotOnHost) || !errors.As(err, &refused) || refused.Code != -1 {
		t.Errorf("%v", err)
	}
}
