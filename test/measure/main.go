// Command measure runs `go test -json` and shows it: the output of what fails,
// a line a package, and at the end how many tests passed, failed and were
// skipped. It adds these, and the time taken, to out/figures-NAME.json.
//
//	go run ./test/measure test 600 -race ./...
//
// The second word is the goal for the time, in seconds. The exit code is go
// test's own.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/node-upgrader/node-upgrader/test/figures"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "measure:", err)
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			os.Exit(exit.ExitCode())
		}
		os.Exit(1)
	}
}

// event is one of `go test -json` (cmd/test2json).
type event struct {
	Action, Package, Test, Output string
	Elapsed                       float64
}

// tally counts top-level tests and subtests alike, as go test -v shows them.
type tally struct {
	passed, failed, skipped int
	output                  map[string][]string // of tests that have not ended
	verbose                 bool
}

func run(ctx context.Context, args []string) error {
	if len(args) < 3 {
		return errors.New("usage: measure NAME SECONDS [go test flags] PACKAGES")
	}
	name := args[0]
	goal, err := strconv.ParseFloat(args[1], 64)
	if err != nil {
		return fmt.Errorf("goal in seconds: %w", err)
	}
	start := time.Now()
	cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-json"}, args[2:]...)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // tests clean up
	cmd.WaitDelay = 2 * time.Minute
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	t := &tally{output: map[string][]string{}, verbose: slices.Contains(args, "-v")}
	s := bufio.NewScanner(out)
	s.Buffer(nil, 1<<22)
	for s.Scan() {
		var e event
		if json.Unmarshal(s.Bytes(), &e) != nil { // a build's failure
			fmt.Println(s.Text())
			continue
		}
		t.take(e)
	}
	failed := errors.Join(s.Err(), cmd.Wait())
	took := time.Since(start).Seconds()
	fmt.Printf("%s: %.0f s\n%d passed, %d failed, %d skipped\n", name, took, t.passed, t.failed, t.skipped)
	return errors.Join(failed, figures.Put(name,
		figures.Info(name+"_passed", float64(t.passed), "tests"),
		figures.AtMost(name+"_failed", float64(t.failed), "tests", 0),
		figures.AtMost(name+"_skipped", float64(t.skipped), "tests", 0),
		figures.AtMost(name+"_seconds", took, "s", goal)))
}

func (t *tally) take(e event) {
	key := e.Package + " " + e.Test
	switch e.Action {
	case "build-output":
		fmt.Print(e.Output)
	case "output":
		switch {
		case t.verbose, e.Test == "" && !strings.HasPrefix(e.Output, "PASS"):
			fmt.Print(e.Output)
		case e.Test != "":
			t.output[key] = append(t.output[key], e.Output)
		}
	case "pass", "fail", "skip":
		if e.Test == "" {
			return
		}
		switch e.Action {
		case "pass":
			t.passed++
		case "skip":
			t.skipped++
			fmt.Printf("SKIP %s: %s\n", key, strings.Join(t.output[key], ""))
		case "fail":
			t.failed++
			fmt.Print(strings.Join(t.output[key], ""))
		}
		delete(t.output, key)
	}
}
