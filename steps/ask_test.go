package steps

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

// A program that hangs is one that does not answer.
func TestAskHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, err := ask(t.Context(), hostexec.Host{Commands: hanging{}}, "/usr/bin/containerd", "--version")
		var failed *hostexec.CommandError
		if !errors.As(err, &failed) || !strings.Contains(err.Error(), "no answer for 30s") {
			t.Errorf("%v", err)
		}
	})
}

// hanging are programs that run until they are stopped.
type hanging struct{}

func (hanging) Run(ctx context.Context, c hostexec.Command) (hostexec.Output, error) {
	<-ctx.Done()
	return hostexec.Output{}, &hostexec.CommandError{Argv: c.Argv, Code: -1, Err: context.Cause(ctx)}
}
