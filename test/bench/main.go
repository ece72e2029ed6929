// Command bench measures what the upgrader costs beside the bare minimum, and
// writes out/figures-bench.json:
//
//	go run ./test/bench            # all, about half an hour
//	go run ./test/bench stage      # only staging against cp
//	go run ./test/bench image      # only the image: its weight, and a patch's pull
//	go run ./test/bench run        # only whole upgrades
//
// Compared runs are made in turns on copies of the same disk; the figures are
// medians.
package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/node-upgrader/node-upgrader/test/cluster"
	"github.com/node-upgrader/node-upgrader/test/figures"
	"github.com/node-upgrader/node-upgrader/test/host"
	"github.com/node-upgrader/node-upgrader/test/payload"
)

const (
	from, to = "1.35", "1.36"
	ignore   = "--ignore-preflight-errors=SystemVerification"
)

//go:embed script.sh
var script []byte

func main() {
	host.Reexec()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var rounds int
	cmd := &cobra.Command{
		Use: "bench [stage|image|run]", Short: "Measure the upgrader", SilenceUsage: true,
		Args: cobra.MatchAll(cobra.MaximumNArgs(1), cobra.OnlyValidArgs), ValidArgs: []string{"stage", "image", "run"},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 || args[0] == "stage" {
				if err := stage(cmd.Context()); err != nil {
					return err
				}
			}
			if len(args) == 0 || args[0] == "image" {
				if err := images(cmd.Context()); err != nil {
					return err
				}
			}
			if len(args) == 0 || args[0] == "run" {
				return whole(cmd.Context(), rounds)
			}
			return nil
		},
	}
	cmd.Flags().IntVar(&rounds, "rounds", 3, "whole upgrades of each kind")
	if err := cmd.ExecuteContext(ctx); err != nil {
		os.Exit(1)
	}
}

// put writes and shows figures.
func put(rows ...figures.Row) error {
	for _, r := range rows {
		mark := ""
		if !r.Holds {
			mark = "  MISSED"
		}
		fmt.Printf("%-18s %8.3f %-6s goal %s%s\n", r.Name, r.Value, r.Unit, r.Goal, mark)
	}
	return figures.Put("bench", rows...)
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	n := len(v)
	if n%2 == 1 {
		return v[n/2]
	}
	return (v[n/2-1] + v[n/2]) / 2
}

// whole upgrades copies of one node, in turns by the upgrader and by the script.
func whole(ctx context.Context, rounds int) (err error) {
	if err := cluster.Prepare(ctx, cluster.Options{Set: from, Progress: os.Stdout}); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "upgrader-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	p, err := payload.Make(ctx, to, dir, os.Stdout)
	if err != nil {
		return err
	}
	var ours, scripts, reruns, peaks []float64
	for i := range rounds {
		fmt.Printf("== round %d of %d\n", i+1, rounds)
		if err := onNode(ctx, p, func(m host.Machine) error {
			r, err := upgrade(ctx, m)
			if err == nil {
				ours, reruns, peaks = append(ours, r.seconds), append(reruns, r.rerun), append(peaks, r.peakMiB)
				fmt.Printf("upgrader run %.1f s, again %.2f s, peak %.0f MiB\n", r.seconds, r.rerun, r.peakMiB)
			}
			return err
		}); err != nil {
			return err
		}
		if err := onNode(ctx, p, func(m host.Machine) error {
			start := time.Now()
			res, err := m.Exec(ctx, host.Command("sh", "/root/script.sh", payload.NodeBundle, "v"+p.Target.Set.Kubernetes, m.Name()))
			if err != nil {
				return fmt.Errorf("%w\n%s", err, res.Stdout)
			}
			scripts = append(scripts, time.Since(start).Seconds())
			fmt.Printf("script       %.1f s\n", scripts[len(scripts)-1])
			return nil
		}); err != nil {
			return err
		}
	}
	return put(
		figures.Info("run_seconds", median(ours), "s"), figures.Info("script_seconds", median(scripts), "s"),
		figures.AtMost("run_vs_script", median(ours)/median(scripts), "ratio", 1.05),
		figures.AtMost("rerun_seconds", median(reruns), "s", 2),
		figures.AtMost("step_peak_mib", slices.Max(peaks), "MiB", 64),
	)
}

// onNode runs f on a fresh node with everything on it that both ways need.
func onNode(ctx context.Context, p payload.Payload, f func(host.Machine) error) (err error) {
	g, err := host.Open(ctx, host.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.Close()) }()
	c, err := cluster.Up(ctx, g, cluster.Options{Set: from})
	if err != nil {
		return err
	}
	m := c.ControlPlane
	if err := errors.Join(p.CopyTo(m), p.ImportImages(ctx, m), m.WriteFile("/root/script.sh", script, 0o755)); err != nil {
		return err
	}
	return f(m)
}

type measured struct{ seconds, rerun, peakMiB float64 }

func upgrade(ctx context.Context, m host.Machine) (measured, error) {
	var r measured
	start := time.Now()
	res, err := m.Exec(ctx, host.Command(payload.NodeUpgrader, "run", "-o", "json", ignore))
	if err != nil {
		return r, fmt.Errorf("%w\n%s", err, res.Stderr)
	}
	r.seconds = time.Since(start).Seconds()
	var caller struct {
		PeakMiB float64 `json:"peakMiB"`
		Results []struct {
			Step    string
			Seconds float64
		}
	}
	if err := json.Unmarshal([]byte(res.Stdout), &caller); err != nil {
		return r, err
	}
	unit, err := m.Exec(ctx, host.Command("sh", "-c", "cat /var/lib/upgrader/runs/*/outcome.json"))
	if err != nil {
		return r, err
	}
	r.peakMiB = caller.PeakMiB // staging happens in the caller
	inSteps := 0.0
	for _, s := range caller.Results {
		fmt.Printf("  %-12s %6.1f s\n", s.Step, s.Seconds)
		inSteps += s.Seconds
	}
	fmt.Printf("  %-12s %6.1f s\n", "looking", r.seconds-inSteps)
	if err := json.Unmarshal([]byte(unit.Stdout), &caller); err != nil {
		return r, err
	}
	r.peakMiB = max(r.peakMiB, caller.PeakMiB)
	start = time.Now()
	if res, err = m.Exec(ctx, host.Command(payload.NodeUpgrader, "run", ignore)); err != nil {
		return r, fmt.Errorf("%w\n%s", err, res.Stderr)
	}
	r.rerun = time.Since(start).Seconds()
	return r, nil
}
