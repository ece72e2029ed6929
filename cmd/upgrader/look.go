package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/node-upgrader/node-upgrader/steps"
)

// newPlan shows what would be done, and changes nothing.
func newPlan() *cobra.Command {
	var f flags
	cmd := &cobra.Command{
		Use: "plan", GroupID: "node", Short: "Show what would change on this node, in what order, and what blocks it",
		Long: `Show what would change on this node, in what order, and what blocks it. Nothing
is changed. The exit code is 0 when an upgrade could start or nothing is to do,
and 3 when something blocks it.`,
	}
	f.bind(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return look(cmd, &f, nil, func(report steps.Report) error {
			if blocks := report.Blocked(); len(blocks) > 0 {
				return &steps.BlockedError{Blocks: blocks}
			}
			return nil
		})
	}
	return cmd
}

// newVerify asks whether the node is at the target.
func newVerify() *cobra.Command {
	var f flags
	cmd := &cobra.Command{
		Use: "verify", GroupID: "node", Short: "Is this node healthy and at the target",
		Long: `Look at every step's result on this node: what runs, not only what lies on its
disk. The exit code is 0 when all of it is healthy and at the target, else 1.`,
	}
	f.bind(cmd)
	var names []string
	cmd.Flags().StringSliceVar(&names, "steps", nil, "only these steps' results; by default all")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return look(cmd, &f, names, func(report steps.Report) error {
			var missing []string
			for _, s := range report.Steps {
				if s.Error != "" || s.Phase != steps.Done {
					missing = append(missing, s.Name)
				}
			}
			if len(missing) > 0 {
				return fmt.Errorf("not at the target: %s", strings.Join(missing, ", "))
			}
			return nil
		})
	}
	return cmd
}

// look prints what is found of the named steps, all without a name, and judges.
func look(cmd *cobra.Command, f *flags, names []string, judge func(steps.Report) error) error {
	c, err := f.validate(cmd)
	if err != nil {
		return err
	}
	p, err := findPlace()
	if err != nil {
		return err
	}
	if err := p.enter(c); err != nil {
		return err
	}
	s, err := newSession(cmd.Context(), c, p, cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	defer s.close()
	if s.runner.Plan, err = steps.Only(s.runner.Plan, names); err != nil {
		return err
	}
	report, err := s.runner.Look(cmd.Context())
	if err != nil {
		return err
	}
	if err := printReport(cmd.OutOrStdout(), c.output, report); err != nil {
		return err
	}
	err = judge(report)
	return errors.Join(err, lastWord(outcome(err, nil)))
}

func printReport(w io.Writer, output string, r steps.Report) error {
	if output == "json" {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(r)
	}
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "node\t%s (%s)\nbundle\t%s\nKubernetes\t%s\nrun\t%s\n", r.Node.Name, r.Node.Role, r.Bundle, r.Kubernetes, r.RunID)
	if len(r.SignedBy) > 0 {
		fmt.Fprintf(t, "signed by\t%s\n", strings.Join(r.SignedBy, ", "))
	}
	for _, v := range r.Versions {
		fmt.Fprintf(t, "%s\t%s\n", v.Name, arrow(v))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for i, s := range r.Steps {
		state := string(s.Phase)
		if s.Error != "" {
			state = "cannot tell yet: " + s.Error
		}
		fmt.Fprintf(&b, "\n%d. %s: %s\n", i+1, s.Name, state)
		for _, f := range s.Facts {
			fmt.Fprintf(&b, "     %s: %s\n", f.Name, arrow(f))
		}
		for _, c := range s.Changes {
			fmt.Fprintf(&b, "   ~ %s %s\n", c.Verb, c.Object)
		}
		for _, block := range s.Blocks {
			fmt.Fprintf(&b, "   ! %s\n", block.Reason)
		}
	}
	for _, block := range r.Blocks {
		fmt.Fprintf(&b, "\n! %s\n", block.Reason)
	}
	_, err := fmt.Fprintln(w, b.String())
	return err
}

// arrow is a fact in one word, or as "have -> want".
func arrow(f steps.Fact) string {
	if f.Want == "" || f.Want == f.Have {
		return f.Have
	}
	return f.Have + " -> " + f.Want
}

// newStatus shows where the node stands.
func newStatus() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use: "status", GroupID: "node", Short: "Show where this node stands: what runs now, and what the runs did",
		Args: cobra.NoArgs,
	}
	var receipt bool
	var run string
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text, json or yaml")
	cmd.Flags().BoolVar(&receipt, "receipt", false, "print a run's receipt, a JSON document (-o yaml: YAML): who asked, each file before and after, each step, each container that was restarted")
	cmd.Flags().StringVar(&run, "run-id", "", "with --receipt: the run; by default the last")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		switch output {
		case "text", "json", "yaml":
		default:
			return &steps.UsageError{Reason: fmt.Sprintf("--output %q: want text, json or yaml", output)}
		}
		if run != "" && !validRunID.MatchString(run) {
			return &steps.UsageError{Reason: fmt.Sprintf("--run-id %q is no run's name (upgrader status)", run)}
		}
		p, err := findPlace()
		if err != nil {
			return err
		}
		if err := p.enter(config{}); err != nil {
			return err
		}
		if receipt {
			return printReceipt(cmd.Context(), cmd.OutOrStdout(), p, output, run)
		}
		status, err := lookStatus(cmd.Context(), p)
		if err != nil {
			return err
		}
		return printStatus(cmd.OutOrStdout(), output, status)
	}
	return cmd
}
