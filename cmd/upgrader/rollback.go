package main

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/node-upgrader/node-upgrader/hostexec"
	"github.com/node-upgrader/node-upgrader/steps"
)

// What the unit does beside the steps.
const (
	rollbackCommand = "rollback"
	abandonCommand  = "abandon"
)

// newRollback undoes what a run has changed.
func newRollback() *cobra.Command {
	var f flags
	cmd := &cobra.Command{
		Use: "rollback [STEP]", GroupID: "node", Short: "Undo what the last run did, newest first",
		Long: `Undo what a run has changed on this node, newest first: all of it, or down to the
named step and that included. Services are stopped, their files put back from the
run's backup, and they have to be healthy again. The bundle is not needed.

A control plane that kubeadm has upgraded goes back only with --restore-etcd, by
the snapshot that was taken before: everything that was written to the cluster
since is lost. What forbids any part of the rollback is told before anything is
done. The same command follows it again, or finishes it after a crash.`,
		Args: cobra.MaximumNArgs(1),
	}
	fs := cmd.Flags()
	fs.StringVarP(&f.output, "output", "o", "text", "text or json: how logs (stderr) and data (stdout) are written")
	fs.StringVar(&f.options.RunID, "run-id", "", "the run to undo; by default the open one, else the last")
	fs.StringVar(&f.role, "role", "", "control-plane or worker; by default found out, and a contradiction is an error")
	fs.StringVar(&f.kubeconfig, "kubeconfig", "", "credentials for cordon and drain; by default a control plane's /etc/kubernetes/admin.conf")
	fs.BoolVar(&f.options.RestoreEtcd, "restore-etcd", false, "put a control plane back by etcd's snapshot: what was written to the cluster since is lost")
	fs.BoolVar(&f.options.NoDrain, "no-drain", false, "do not drain first: for a node whose API server will not come back")
	bindDeadMan(fs, &f.options)
	f.options.Drain = steps.DefaultDrain()
	f.bindDrain(fs)
	f.onFailure, f.options.KeepRuns = string(steps.RollBack), steps.DefaultKeepRuns
	var deadMan bool
	fs.BoolVar(&deadMan, "dead-man", false, "what the dead-man's switch starts: put the step back unless it was proven healthy")
	if err := fs.MarkHidden("dead-man"); err != nil {
		panic(err)
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := f.validate(cmd)
		if err != nil {
			return err
		}
		return inSession(cmd, c, false, sessionOfRun, func(ctx context.Context, s *session) ([]steps.Result, error) {
			if !deadMan {
				return s.undo(ctx, cmd, rollbackCommand)
			}
			if len(args) != 1 || c.options.RunID == "" {
				return nil, &steps.UsageError{Reason: "--dead-man: want one step, and --run-id"}
			}
			return nil, s.runner.DeadMan(ctx, args[0])
		})
	}
	return cmd
}

// abandonRun ends the open run, without its bundle.
func abandonRun(cmd *cobra.Command, f *flags) error {
	c, err := f.validate(cmd)
	if err != nil {
		return err
	}
	return inSession(cmd, c, false, sessionOfRun, func(ctx context.Context, s *session) ([]steps.Result, error) {
		history, err := s.runner.Env.Record.Journal().History()
		if err != nil {
			return nil, err
		}
		if !history.Open {
			return nil, &steps.BlockedError{Blocks: []steps.Block{{
				Reason: "no run is open on this node", Hint: "upgrader status; to undo one that has ended: upgrader rollback",
			}}}
		}
		results, err := s.undo(ctx, cmd, abandonCommand)
		if err == nil {
			s.runner.Env.Log.Info("closed; what it has finished stays, and `upgrader rollback` undoes that", "run", s.runner.Env.Options.RunID)
		}
		return results, err
	})
}

// undo runs the command as the unit, unless the unit works on something else.
func (s *session) undo(ctx context.Context, cmd *cobra.Command, command string) ([]steps.Result, error) {
	env := s.runner.Env
	unit, err := env.Host.Units.Show(ctx, steps.UnitName)
	if err != nil {
		return nil, err
	}
	if unit.Running() || unit.ActiveState == "deactivating" {
		if running, err := steps.ParseInvocation(unit.Environment); err != nil || running.Command != command {
			return nil, &steps.BlockedError{Blocks: []steps.Block{{
				Reason: fmt.Sprintf("the upgrader works on this node: %s of run %s", running.Command, running.RunID),
				Hint:   "wait for it (upgrader status), or stop it: systemctl stop " + steps.UnitName,
			}}}
		}
	}
	inv := s.invocation(cmd)
	inv.Command = command
	program := env.Program
	if env.Bundle != nil {
		staged, err := findStaged(ctx, env.Host.FS, env.Bundle.Digest)
		if err != nil {
			return nil, err
		}
		program = staged.Upgrader
	} else if os.Getenv(enteredEnv) != "" {
		return nil, &steps.BlockedError{Blocks: []steps.Block{{
			Reason: "the run's bundle is not staged any more, and the program of a container cannot outlive it",
			Hint:   "copy the upgrader to the node and run it there",
		}}}
	}
	inv.Argv = append([]string{program, cmd.Name(), "--output=json"}, append(inv.Flags, inv.Args...)...)
	return s.asUnit(ctx, inv, nil)
}

// newRecover is what systemd starts at boot while a run is open.
func newRecover() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use: "recover", Hidden: true, Short: "At boot: make the files of an interrupted run consistent",
	}
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		p, err := findPlace()
		if err != nil {
			return err
		}
		if p.container {
			return &steps.BlockedError{Blocks: []steps.Block{{Reason: "recover is for the host's own boot", Hint: "upgrader rollback"}}}
		}
		files := hostexec.NewFS(p.root())
		s, err := recovery(files, output, cmd.ErrOrStderr())
		if err != nil {
			return err
		}
		defer s.log.close()
		_, err = s.locked(cmd.Context(), func() ([]steps.Result, error) {
			return nil, steps.Recover(cmd.Context(), s.runner.Env)
		})
		return err
	}
	return cmd
}
