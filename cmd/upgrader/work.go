package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/node-upgrader/node-upgrader/steps"
)

// newStep is the command of one step.
func newStep(step steps.Step) *cobra.Command {
	var f flags
	cmd := &cobra.Command{Use: step.Name, Short: step.Short, GroupID: "step"}
	f.bind(cmd)
	var dryRun, imagesOnly bool
	if step.Name == "copy" {
		cmd.Flags().BoolVar(&imagesOnly, "images-only", false, "only bring the images that this node will need: for every node, before the first one is upgraded, where there is no registry")
	}
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
			case step.Name == "copy" && imagesOnly:
				return s.inTurn(ctx, cmd, func() ([]steps.Result, error) {
					return s.locked(ctx, func() ([]steps.Result, error) { return s.runner.BringImages(ctx) })
				})
			case step.Name == "copy":
				return s.copyStep(ctx, cmd)
			}
			return s.inTurn(ctx, cmd, func() ([]steps.Result, error) {
				report, err := s.runner.Preflight(ctx, step.Name)
				if err == nil && report.Done() {
					return s.runner.Unchanged(report), nil
				}
				return s.detach(ctx, cmd, func() error { return err })
			})
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
	var abandon bool
	cmd.Flags().BoolVar(&abandon, "abandon", false, "take back what the open run has begun and not finished, and end it; needs no bundle")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if abandon {
			return abandonRun(cmd, &f)
		}
		return onNode(cmd, &f, false, func(ctx context.Context, s *session) ([]steps.Result, error) {
			return s.inTurn(ctx, cmd, func() ([]steps.Result, error) { return s.run(ctx, cmd) })
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
	return inSession(cmd, c, stay, newSession, work)
}

// opener makes a session.
type opener func(context.Context, config, place, io.Writer) (*session, error)

func inSession(cmd *cobra.Command, c config, stay bool, open opener, work func(context.Context, *session) ([]steps.Result, error)) error {
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
		return unit(ctx, c, p, cmd.ErrOrStderr(), open)
	}
	s, err := open(ctx, c, p, cmd.ErrOrStderr())
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
	return s.locked(ctx, func() ([]steps.Result, error) { return s.runner.Run(ctx, name) })
}

// locked does what changes the node in this process, as the node's only
// upgrader.
func (s *session) locked(ctx context.Context, work func() ([]steps.Result, error)) ([]steps.Result, error) {
	unlock, err := steps.Lock(ctx, s.runner.Env)
	if err != nil {
		return nil, err
	}
	defer unlock()
	return work()
}

// copyStep looks at the whole node before it stages anything.
func (s *session) copyStep(ctx context.Context, cmd *cobra.Command) ([]steps.Result, error) {
	return s.inTurn(ctx, cmd, func() ([]steps.Result, error) {
		return s.locked(ctx, func() ([]steps.Result, error) { return s.runner.Run(ctx, "copy") })
	})
}

func (s *session) run(ctx context.Context, cmd *cobra.Command) ([]steps.Result, error) {
	report, err := s.runner.Preflight(ctx)
	if err != nil {
		return nil, err
	}
	if report.Done() {
		s.runner.Env.Log.Info("nothing to do: the node is at the target", "kubernetes", report.Kubernetes)
		return nil, nil
	}
	results, err := s.locked(ctx, func() ([]steps.Result, error) { return s.runner.Work(ctx, "copy") })
	if err != nil {
		return results, err
	}
	rest, err := s.detach(ctx, cmd, nil)
	return append(results, rest...), err
}

// outcome is how this process ends.
func outcome(err error, results []steps.Result) steps.Outcome {
	o := steps.NewOutcome(err, results)
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
