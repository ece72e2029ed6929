package hostexec_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

func TestCommandFailureSaysAllThatIsNeeded(t *testing.T) {
	_, err := hostexec.Exec{}.Run(t.Context(), hostexec.Command{Argv: []string{"/bin/sh", "-c", "echo out; echo why >&2; exit 7"}})
	var ce *hostexec.CommandError
	if !errors.As(err, &ce) {
		t.Fatalf("%T: %v", err, err)
	}
	if ce.Code != 7 || ce.Stderr != "why\n" || !strings.Contains(err.Error(), "why") || !strings.Contains(err.Error(), "/bin/sh") {
		t.Errorf("%+v: %v", ce, err)
	}
}

func TestCommandThatIsNotThere(t *testing.T) {
	_, err := hostexec.Exec{}.Run(t.Context(), hostexec.Command{Argv: []string{"/not/there"}})
	var ce *hostexec.CommandError
	if !errors.As(err, &ce) || ce.Code != -1 || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("%v", err)
	}
}

func TestCommandLinesAndBoundedOutput(t *testing.T) {
	var lines []string
	out, err := hostexec.Exec{}.Run(t.Context(), hostexec.Command{
		Argv: []string{"/bin/sh", "-c", "echo one; printf two"}, Line: func(l string) { lines = append(lines, l) },
	})
	must(t, err)
	if diff := cmp.Diff([]string{"one", "two"}, lines); diff != "" {
		t.Error(diff)
	}
	if string(out.Stdout) != "one\ntwo" {
		t.Errorf("%q", out.Stdout)
	}
	out, err = hostexec.Exec{}.Run(t.Context(), hostexec.Command{Argv: []string{"/bin/sh", "-c", "head -c 3000000 /dev/zero"}})
	must(t, err)
	if len(out.Stdout) != 1<<20 {
		t.Errorf("kept %d bytes", len(out.Stdout))
	}
}

func TestCommandGetsTermThenKill(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	start := time.Now()
	_, err := hostexec.Exec{}.Run(ctx, hostexec.Command{
		Argv: []string{"/bin/sh", "-c", "trap '' TERM; echo hung >&2; while :; do sleep 0.05; done"}, Grace: 300 * time.Millisecond,
	})
	var ce *hostexec.CommandError
	if !errors.As(err, &ce) || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(ce.Stderr, "hung") {
		t.Errorf("%v", err)
	}
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("took %s", took)
	}
}

func TestUninterruptibleCommandFinishes(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	out, err := hostexec.Exec{}.Run(ctx, hostexec.Command{Argv: []string{"/bin/sh", "-c", "sleep 0.3; echo whole"}, Uninterruptible: true})
	if err != nil || string(out.Stdout) != "whole\n" {
		t.Errorf("%q, %v", out.Stdout, err)
	}
}
