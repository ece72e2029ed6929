package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/node-upgrader/node-upgrader/steps"
)

// newRoot is the whole command line; the commands of the steps come from the
// plan itself.
func newRoot(in io.Reader, out, errOut io.Writer) *cobra.Command {
	root := &cobra.Command{
		Use:   "upgrader",
		Short: "Upgrade this node's Kubernetes components in place",
		Long: `Upgrade the Kubernetes components of the node this runs on, in place: containerd,
CNI plugins, kubeadm and the control plane it manages, kubelet and kubectl.

Exit codes: 0 done or nothing to do, 1 failed, 2 usage, 3 blocked and nothing
changed, 4 failed and rolled back, 5 failed and the rollback is incomplete.`,
		Args:          cobra.NoArgs,
		SilenceErrors: true, SilenceUsage: true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
		RunE:              func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cobra.EnableCommandSorting = false // the steps have an order
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errOut)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return &steps.UsageError{Reason: fmt.Sprintf("%v (see %s --help)", err, cmd.CommandPath())}
	})
	root.AddGroup(&cobra.Group{ID: "node", Title: "The node:"}, &cobra.Group{ID: "step", Title: "One step each, in this order:"},
		&cobra.Group{ID: "make", Title: "Making what is installed:"})
	root.AddCommand(newPlan(), newRun(), newVerify(), newStatus(), newRollback(), newRecover(), newBundle(), newMirror(), newManifests(), newVersion())
	for _, step := range steps.Plan(steps.Options{}) {
		root.AddCommand(newStep(step))
	}
	usageErrors(root)
	return root
}

// usageErrors makes every complaint of cobra about arguments a usage error.
func usageErrors(cmd *cobra.Command) {
	for _, c := range cmd.Commands() {
		usageErrors(c)
	}
	args := cmd.Args
	if args == nil {
		args = cobra.NoArgs
	}
	cmd.Args = func(cmd *cobra.Command, a []string) error {
		if err := args(cmd, a); err != nil {
			return &steps.UsageError{Reason: fmt.Sprintf("%v (see %s --help)", err, cmd.CommandPath())}
		}
		return nil
	}
}

// printError is the one place where an error is shown, with what to do.
func printError(w io.Writer, err error) {
	if err == nil {
		return
	}
	var shown *shownError
	if errors.As(err, &shown) {
		return
	}
	var blocked *steps.BlockedError
	if errors.As(err, &blocked) && len(blocked.Blocks) > 1 {
		fmt.Fprintf(w, "upgrader: %d things are in the way:\n", len(blocked.Blocks))
		for _, b := range blocked.Blocks {
			fmt.Fprintf(w, "  - %s\n", b.Reason)
			if b.Hint != "" {
				fmt.Fprintf(w, "    do: %s\n", b.Hint)
			}
		}
		return
	}
	fmt.Fprintf(w, "upgrader: %v\n", err)
	for _, hint := range steps.Hints(err) {
		fmt.Fprintf(w, "  do: %s\n", hint)
	}
}

// shownError is an error that the user has read already; only its exit code is
// left.
type shownError struct{ err error }

func (e *shownError) Error() string { return e.err.Error() }
func (e *shownError) Unwrap() error { return e.err }
