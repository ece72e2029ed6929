package main

import (
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
	for _, digest := range s.Staged {
		fmt.Fprintf(&b, "staged bundle: %s\n", digest)
	}
	for _, run := range s.Runs {
		fmt.Fprintf(&b, "\nrun %s\n", run.ID)
		if o := run.Outcome; o != nil && o.Exit != steps.ExitDone {
			fmt.Fprintf(&b, "  ended with exit code %d: %s\n", o.Exit, o.Error)
		}
		t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
		for _, r := range run.Results {
			fmt.Fprintf(t, "  %s\t%s\t%s\t%.1f s\t%s\n", r.Started.Local().Format("2006-01-02 15:04:05"), r.Step, r.Result, r.Seconds, r.Error)
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}
