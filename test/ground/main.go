// Command ground makes throwaway Kubernetes nodes on this machine, to look
// around in and to break.
//
//	go run ./test/ground up --workers 1 1.35   # a control plane and a worker
//	go run ./test/ground list
//	go run ./test/ground exec cp -- kubectl get pods -A
//	go run ./test/ground shell cp
//	go run ./test/ground crash cp && go run ./test/ground boot cp
//	go run ./test/ground down
//
// The nodes stay until `down`. What they are is in the documentation of the
// packages test/host and test/cluster.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"

	"github.com/node-upgrader/node-upgrader/test/host"
)

func main() {
	host.Reexec()
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	err := newCommand().ExecuteContext(ctx)
	stop()
	os.Exit(exitCode(err))
}

// exitCode prints the error, if any, and says how to exit. A command on a node
// that failed has said why itself: its code is handed on.
func exitCode(err error) int {
	if err == nil {
		return 0
	}
	if exit := (*passedOn)(nil); errors.As(err, &exit) {
		return exit.code
	}
	fmt.Fprintln(os.Stderr, "ground:", err)
	return 1
}

// passedOn is a command on a node that ended with another code than 0.
type passedOn struct{ code int }

func (p *passedOn) Error() string { return fmt.Sprintf("exit code %d", p.code) }
