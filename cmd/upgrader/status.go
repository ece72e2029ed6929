package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"sigs.k8s.io/yaml"

	"github.com/node-upgrader/node-upgrader/hostexec"
	"github.com/node-upgrader/node-upgrader/steps"
)

func lookStatus(ctx context.Context, p place) (steps.Status, error) {
	files := hostexec.NewFS(p.root())
	units := hostexec.NewSystemd(files)
	defer units.Close()
	return steps.LookStatus(ctx, hostexec.Host{FS: files, Units: units})
}

func printStatus(w io.Writer, output string, s steps.Status) error {
	switch output {
	case "json":
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(s)
	case "yaml":
		data, err := yaml.Marshal(s)
		if err != nil {
			return err
		}
		_, err = w.Write(data)
		return err
	}
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, u := range s.Units {
		fmt.Fprintf(t, "%s\t%s\tpid %d\t%s\n", u.Unit, u.State, u.PID, u.Binary)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if s.Running != nil {
		fmt.Fprintf(&b, "\nrunning now: %s of run %s, bundle %s (log: %s)\n", s.Running.Command, s.Running.RunID, s.Running.Bundle, s.Running.Log)
	} else {
		fmt.Fprintln(&b, "\nno upgrade is running")
	}
	if s.DeadMan {
		fmt.Fprintf(&b, "the dead-man's switch is armed: systemctl list-timers %s\n", steps.DeadManTimer)
	}
	for _, digest := range s.Staged {
		fmt.Fprintf(&b, "staged bundle: %s\n", digest)
	}
	for _, run := range s.Runs {
		if err := printRun(&b, run); err != nil {
			return err
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func printRun(b *strings.Builder, run steps.RunState) error {
	fmt.Fprintf(b, "\nrun %s", run.ID)
	switch {
	case run.Error != "":
		fmt.Fprintf(b, ": %s\n", run.Error)
		for _, hint := range run.Hints {
			fmt.Fprintf(b, "  do: %s\n", hint)
		}
		return nil
	case run.Open:
		fmt.Fprintf(b, ", open, step %s", cmp.Or(run.Step, "none yet"))
	case run.Closed != "":
		fmt.Fprintf(b, ", %s", run.Closed)
	}
	if run.Kubernetes != "" {
		fmt.Fprintf(b, ": Kubernetes %s, bundle %s, asked by %s", run.Kubernetes, run.Bundle, run.By)
	}
	fmt.Fprintln(b)
	if o := run.Outcome; o != nil && o.Exit != steps.ExitDone {
		fmt.Fprintf(b, "  ended with exit code %d: %s\n", o.Exit, o.Error)
	}
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	for _, r := range run.Results {
		fmt.Fprintf(t, "  %s\t%s\t%s\t%.1f s\t%s\n", r.Started.Local().Format("2006-01-02 15:04:05"), r.Step, r.Result, r.Seconds, r.Error)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, p := range run.Pending {
		fmt.Fprintf(b, "  begun and not reported: %s %s (%s, %s)\n", p.Op, p.Object, p.Step, p.Time.Local().Format("15:04:05"))
	}
	return nil
}

// printReceipt is one run's receipt, the newest's when no run is named.
func printReceipt(ctx context.Context, w io.Writer, p place, output, run string) error {
	files := hostexec.NewFS(p.root())
	if run == "" {
		var err error
		if run, err = steps.NewestRun(files); err != nil {
			return err
		}
	}
	receipt, err := steps.ReadReceipt(ctx, files, run)
	if err != nil {
		return err
	}
	if output == "yaml" {
		data, err := yaml.Marshal(receipt)
		if err != nil {
			return err
		}
		_, err = w.Write(data)
		return err
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(receipt)
}
