// Command pause is the proving ground's pause image: PID 1 of a pod's sandbox.
//
// It waits for SIGTERM or SIGINT and reaps what is orphaned to it. With -v it
// prints its version and exits 0, as kubeadm's upgrade health check, a Job that
// runs the pause image with -v, expects:
// https://github.com/kubernetes/kubernetes/blob/master/cmd/kubeadm/app/phases/upgrade/health.go
//
// It needs the standard library only, and serves as a workload that does nothing.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

var version = "unknown" // set by the linker

func main() {
	for _, arg := range os.Args[1:] {
		if arg == "-v" || arg == "--version" {
			_, _ = os.Stdout.WriteString("pause " + version + "\n")
			return
		}
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGCHLD)
	reap() // a child may have ended before Notify
	for s := range signals {
		if s != syscall.SIGCHLD {
			return
		}
		reap()
	}
}

// reap waits for every child that has ended: one SIGCHLD may stand for several.
func reap() {
	for {
		pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		if err == syscall.EINTR {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
	}
}
