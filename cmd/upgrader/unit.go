package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"github.com/node-upgrader/node-upgrader/hostexec"
	"github.com/node-upgrader/node-upgrader/steps"
)

// detach runs the command as the unit, by the staged program from the staged
// bundle. A unit that runs already is followed even when unless has a reason
// not to start one: the reason may be its work.
func (s *session) detach(ctx context.Context, cmd *cobra.Command, unless func() error) ([]steps.Result, error) {
	env := s.runner.Env
	staged, err := findStaged(ctx, env.Host.FS, env.Bundle.Digest)
	if err != nil {
		return nil, &steps.BlockedError{Blocks: []steps.Block{{
			Reason: fmt.Sprintf("bundle %s: %v", env.Bundle.Digest, err), Hint: "run the copy step first: upgrader copy",
		}}}
	}
	inv := s.invocation(cmd)
	inv.Argv = append([]string{staged.Upgrader, inv.Command, "--bundle=" + staged.Bundle.Dir, "--output=json"}, inv.Flags...)
	return s.asUnit(ctx, inv, unless)
}

// asUnit starts the unit, or follows it where it does the same already.
func (s *session) asUnit(ctx context.Context, inv steps.Invocation, unless func() error) ([]steps.Result, error) {
	env := s.runner.Env
	o, attached, err := steps.Attach(ctx, env, inv, s.log.replay)
	if !attached && err == nil {
		if unless != nil {
			err = unless()
		}
		if err == nil {
			o, err = steps.Detach(ctx, env, inv, s.log.replay)
		}
	}
	var detached *steps.DetachedError
	if errors.As(err, &detached) {
		return nil, &steps.HintError{Err: err, Hint: "follow it again with the same command, see it with `upgrader status`, or stop it with `systemctl stop " + steps.UnitName + "`"}
	}
	if err != nil {
		return nil, err
	}
	return o.Results, o.Err()
}

// invocation is what the unit is asked to do.
func (s *session) invocation(cmd *cobra.Command) steps.Invocation {
	env := s.runner.Env
	inv := steps.Invocation{
		ID: rand.Text(), RunID: env.Options.RunID, By: askedBy(), Command: cmd.Name(),
		Args: cmd.Flags().Args(), Flags: given(cmd), Log: env.Record.Path("log.jsonl"),
	}
	if env.Bundle != nil {
		inv.Bundle = env.Bundle.Digest
	}
	return inv
}

// unit is the life of the unit's process: the work, and then its outcome for
// whoever follows.
func unit(ctx context.Context, c config, p place, errOut io.Writer, open opener) error {
	inv, err := steps.ParseInvocation(os.Environ())
	if err != nil {
		return err
	}
	var results []steps.Result
	c.options.RunID = inv.RunID
	s, err := open(ctx, c, p, errOut)
	if err == nil {
		defer s.close()
		results, err = s.locked(ctx, func() ([]steps.Result, error) { return s.invoked(ctx, inv) })
	}
	o := outcome(err, results)
	o.ID = inv.ID
	record := steps.NewRecord(hostexec.NewFS(p.root()), inv.RunID)
	if concluded := steps.Conclude(context.WithoutCancel(ctx), record, o); concluded != nil || err == nil {
		return errors.Join(err, concluded)
	}
	// Whoever follows reads it there and shows it, once; this is for the log.
	slog.New(newLogger(errOut, "json")).Error(o.Error, "event", eventOutcome, "exit", o.Exit, "do", o.Hints)
	return &shownError{err}
}

// invoked is the work that the unit was started for.
func (s *session) invoked(ctx context.Context, inv steps.Invocation) ([]steps.Result, error) {
	switch inv.Command {
	case "run":
		return s.runner.Run(ctx)
	case abandonCommand:
		return s.runner.Abandon(ctx)
	case rollbackCommand:
		to := ""
		if len(inv.Args) > 0 {
			to = inv.Args[0]
		}
		return s.runner.Rollback(ctx, to)
	default:
		return s.runner.Run(ctx, inv.Command)
	}
}
