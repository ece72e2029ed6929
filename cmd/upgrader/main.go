// Command upgrader upgrades the Kubernetes components of the node that it runs
// on, in place: containerd, CNI plugins, kubeadm and the control plane that it
// manages, kubelet and kubectl.
//
// It runs as the init containers of a privileged pod, one step each, or by hand
// on the node:
//
//	upgrader plan        what would change on this node, and what blocks it
//	upgrader run         every step in order
//	upgrader copy | containerd | cni-plugins | kubeadm | drain | kubelet | uncordon
//	upgrader verify      is this node healthy and at the target
//	upgrader status      where the node stands
//	upgrader bundle      build, inspect and verify what is installed
//	upgrader manifests   the YAML that an orchestrator applies
//
// Data is on stdout, logs and progress on stderr. The exit codes are a
// contract: 0 done or nothing to do, 1 failed, 2 usage, 3 blocked and nothing
// changed, 4 failed and rolled back, 5 failed and the rollback is incomplete.
package main

import (
	"context"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/node-upgrader/node-upgrader/steps"
)

func main() { os.Exit(Main()) }

// Main is the whole program but for the exit: scripts in tests run it as a
// command of theirs.
func Main() int {
	// It runs beside workloads, on small machines too: a lean heap is worth
	// more than the collector's time.
	debug.SetGCPercent(25)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	cmd := newRoot(os.Stdin, os.Stdout, os.Stderr)
	err := cmd.ExecuteContext(ctx)
	printError(os.Stderr, err)
	return steps.ExitCode(err)
}
