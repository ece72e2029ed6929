package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/node-upgrader/node-upgrader/hostexec"
	"github.com/node-upgrader/node-upgrader/image"
	"github.com/node-upgrader/node-upgrader/steps"
)

// newStep is the command of one step.
func newStep(step steps.Step) *cobra.Command {
	var f flags
	cmd := &cobra.Command{Use: step.Name, Short: step.Short, GroupID: "step"}
	f.bind(cmd)
	var dryRun bool
	if step.Name == "drain" {
		cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only tell what would be evicted, and what forbids it; changes nothing")
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if dryRun {
			return dryDrain(cmd, &f)
		}
		return onNode(cmd, &f, step.Kube, func(ctx context.Context, s *session) ([]steps.Result, error) {
			switch {
			case step.Kube:
				return s.kube(ctx, cmd, step.Name)
			case step.Name == "copy":
				return s.copyStep(ctx, cmd)
			}
			report, err := s.runner.Preflight(ctx, step.Name)
			if err == nil && report.Done() {
				return s.runner.Unchanged(report), nil
			}
			return s.detach(ctx, cmd, func() error { return err })
		})
	}
	return cmd
}

// newRun is every step in order, by hand.
func newRun() *cobra.Command {
	var f flags
	cmd := &cobra.Command{
		Use: "run", GroupID: "node", Short: "Upgrade this node: every step in order",
		Long: `Upgrade this node: every step in order, each skipped where it is done.

The bundle is staged first; then the steps run as a unit of systemd, which goes
on when this command, its terminal or its ssh session ends. The same command
follows it again.`,
	}
	f.bind(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return onNode(cmd, &f, false, func(ctx context.Context, s *session) ([]steps.Result, error) {
			return s.run(ctx, cmd)
		})
	}
	return cmd
}

// onNode is the frame of every command that works on the node: flags, place,
// session, and the result on stdout and in the container's last word.
func onNode(cmd *cobra.Command, f *flags, stay bool, work func(context.Context, *session) ([]steps.Result, error)) error {
	c, err := f.validate(cmd)
	if err != nil {
		return err
	}
	p, err := findPlace()
	if err != nil {
		return err
	}
	if !stay {
		if err := p.enter(c); err != nil {
			return err
		}
	}
	ctx := cmd.Context()
	if os.Getenv(steps.InvocationEnv) != "" {
		return unit(ctx, c, p, cmd.ErrOrStderr())
	}
	s, err := newSession(ctx, c, p, cmd.ErrOrStderr())
	if err != nil {
		return errors.Join(err, lastWord(outcome(err, nil)))
	}
	defer s.close()
	results, err := work(ctx, s)
	s.log.close()
	o := outcome(err, results)
	return errors.Join(err, lastWord(o), printResults(cmd.OutOrStdout(), c.output, o))
}

// kube runs a step that changes the cluster only: in this process, after the
// unit where that works on the same run, and as the node's only upgrader.
func (s *session) kube(ctx context.Context, cmd *cobra.Command, name string) ([]steps.Result, error) {
	if o, attached, err := steps.Attach(ctx, s.runner.Env, s.invocation(cmd), s.log.replay); attached || err != nil {
		return o.Results, errors.Join(err, o.Err())
	}
	unlock, err := steps.Lock(ctx, s.runner.Env)
	if err != nil {
		return nil, err
	}
	defer unlock()
	return s.runner.Run(ctx, name)
}

// copyStep looks at the whole node before it stages anything.
func (s *session) copyStep(ctx context.Context, cmd *cobra.Command) ([]steps.Result, error) {
	if _, attached, err := steps.Attach(ctx, s.runner.Env, s.invocation(cmd), s.log.replay); attached || err != nil {
		return nil, err
	}
	return s.runner.Run(ctx, "copy")
}

func (s *session) run(ctx context.Context, cmd *cobra.Command) ([]steps.Result, error) {
	if o, attached, err := steps.Attach(ctx, s.runner.Env, s.invocation(cmd), s.log.replay); attached || err != nil {
		return o.Results, errors.Join(err, o.Err())
	}
	report, err := s.runner.Preflight(ctx)
	if err != nil {
		return nil, err
	}
	if report.Done() {
		s.runner.Env.Log.Info("nothing to do: the node is at the target", "kubernetes", report.Kubernetes)
		return nil, nil
	}
	results, err := s.runner.Work(ctx, "copy")
	if err != nil {
		return results, err
	}
	rest, err := s.detach(ctx, cmd, nil)
	return append(results, rest...), err
}

// detach runs the command as the unit, by the staged program from the staged
// bundle. A unit that runs already is followed even when unless has a reason
// not to start one: the reason may be its work.
func (s *session) detach(ctx context.Context, cmd *cobra.Command, unless func() error) ([]steps.Result, error) {
	env := s.runner.Env
	store, err := env.Host.FS.Resolve(steps.Store)
	if err != nil {
		return nil, err
	}
	staged, err := image.FindStaged(ctx, store, env.Bundle.Digest, env.Staging.BootID)
	if err != nil {
		return nil, &steps.BlockedError{Blocks: []steps.Block{{
			Reason: fmt.Sprintf("bundle %s: %v", env.Bundle.Digest, err), Hint: "run the copy step first: upgrader copy",
		}}}
	}
	inv := s.invocation(cmd)
	inv.Argv = append([]string{staged.Upgrader, inv.Command, "--bundle=" + staged.Bundle.Dir, "--output=json"}, inv.Flags...)
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
	return steps.Invocation{
		ID: rand.Text(), RunID: env.Options.RunID, Bundle: env.Bundle.Digest, Command: cmd.Name(),
		Flags: given(cmd), Log: env.Record.Path("log.jsonl"),
	}
}

// unit is the life of the unit's process: the work, and then its outcome for
// whoever follows.
func unit(ctx context.Context, c config, p place, errOut io.Writer) error {
	inv, err := steps.ParseInvocation(os.Environ())
	if err != nil {
		return err
	}
	var results []steps.Result
	c.options.RunID = inv.RunID
	s, err := newSession(ctx, c, p, errOut)
	if err == nil {
		defer s.close()
		var names []string
		if inv.Command != "run" {
			names = []string{inv.Command}
		}
		var unlock func()
		if unlock, err = steps.Lock(ctx, s.runner.Env); err == nil {
			defer unlock()
			results, err = s.runner.Run(ctx, names...)
		}
	}
	o := outcome(err, results)
	o.ID = inv.ID
	record := steps.NewRecord(hostexec.NewFS(p.root()), inv.RunID)
	return errors.Join(err, steps.Conclude(context.WithoutCancel(ctx), record, o))
}

// outcome is how this process ends.
func outcome(err error, results []steps.Result) steps.Outcome {
	o := steps.Outcome{Exit: steps.ExitCode(err), Hints: steps.Hints(err), Results: results}
	if err != nil {
		o.Error = err.Error()
	}
	var usage unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &usage) == nil {
		o.PeakMiB = float64(usage.Maxrss) / 1024 // KiB on Linux
	}
	return o
}

// lastWord leaves the outcome where the kubelet reads a container's
// termination message (at most 4 KiB).
func lastWord(o steps.Outcome) error {
	path := fdPath(terminationFD)
	if path == "" {
		if os.Getenv("KUBERNETES_SERVICE_HOST") == "" {
			return nil
		}
		path = terminationLog
	}
	data, err := json.Marshal(o)
	if err != nil {
		return err
	}
	if len(data) > 4096 {
		short := steps.Outcome{ID: o.ID, Exit: o.Exit, Error: o.Error[:min(len(o.Error), 2048)]}
		if data, err = json.Marshal(short); err != nil {
			return err
		}
	}
	return os.WriteFile(path, data, 0o644) //nolint:gosec // read by the kubelet
}

// printResults is the data of a command that worked on the node.
func printResults(w io.Writer, output string, o steps.Outcome) error {
	if output == "json" {
		return json.NewEncoder(w).Encode(struct {
			Schema int `json:"schema"`
			steps.Outcome
		}{1, o})
	}
	var b strings.Builder
	for _, r := range o.Results {
		fmt.Fprintf(&b, "%-12s %-10s %6.1f s\n", r.Step, r.Result, r.Seconds)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
