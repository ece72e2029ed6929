package hostexec

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// maxOutput bounds what is kept of each of a command's two outputs; the rest
// is read and dropped, so that the program never blocks on a full pipe.
const maxOutput = 1 << 20

// ErrNotOnHost is in the error of a command that was not tried, since this
// process is in a container in which the host's programs cannot run. It says
// nothing of the program.
var ErrNotOnHost = errors.New("not on the host")

// Command is a program with its arguments; no shell ever sees it.
type Command struct {
	Argv []string
	// Env replaces the environment when it is not nil; otherwise the program
	// gets a PATH and a HOME only.
	Env []string
	Dir string
	// Stdin is the program's standard input, /dev/null when nil.
	Stdin io.Reader
	// Line, when set, gets each line of both outputs as it is written.
	Line func(string)
	// Grace is the time between SIGTERM and SIGKILL when the context ends; 10 s
	// when zero.
	Grace time.Duration
	// Uninterruptible programs are waited for even when the context ends:
	// killing them would leave something half-done.
	Uninterruptible bool
	// Changes says that the program changes the host, and is an Effect.
	Changes bool
	// UID and GID run the program as another user when they are not zero.
	UID, GID uint32
}

// Output is what a command wrote, each at most 1 MiB.
type Output struct{ Stdout, Stderr []byte }

// CommandError is a program that could not be started or that failed.
type CommandError struct {
	Argv   []string
	Code   int // -1: not started, or ended by a signal
	Stderr string
	Err    error
}

func (e *CommandError) Error() string {
	msg := fmt.Sprintf("%s: %v", strings.Join(e.Argv, " "), e.Err)
	if tail := lastLines(e.Stderr, 20); tail != "" {
		msg += "\n" + tail
	}
	return msg
}

func (e *CommandError) Unwrap() error { return e.Err }

// defaultEnv is the environment of a command that names none: where the host's
// administrator's tools are.
func defaultEnv() []string {
	return []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LC_ALL=C"}
}

// Exec runs programs as children of this process.
type Exec struct{}

// Run implements Commands.
func (Exec) Run(ctx context.Context, c Command) (Output, error) {
	if len(c.Argv) == 0 {
		return Output{}, errors.New("run: no command")
	}
	if err := ctx.Err(); err != nil {
		return Output{}, &CommandError{Argv: c.Argv, Code: -1, Err: err}
	}
	if c.Uninterruptible {
		ctx = context.WithoutCancel(ctx)
	}
	grace := c.Grace
	if grace == 0 {
		grace = 10 * time.Second
	}
	env := c.Env
	if env == nil {
		env = defaultEnv()
	}
	stdout, stderr := &lineBuffer{line: c.Line}, &lineBuffer{line: c.Line}
	cmd := exec.CommandContext(ctx, c.Argv[0], c.Argv[1:]...) //nolint:gosec // running host commands is the job
	cmd.Env, cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = env, c.Dir, c.Stdin, stdout, stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = grace
	// A group of its own: a signal to our group (Ctrl-C on a terminal) must
	// not reach a program that may not be interrupted.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if c.UID != 0 || c.GID != 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: c.UID, Gid: c.GID}
	}
	err := cmd.Run()
	stdout.flush()
	stderr.flush()
	out := Output{Stdout: stdout.kept.Bytes(), Stderr: stderr.kept.Bytes()}
	if err == nil {
		return out, nil
	}
	code := -1
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		code = exit.ExitCode()
	}
	if ctx.Err() != nil {
		err = fmt.Errorf("%w (%w)", err, context.Cause(ctx))
	}
	text := string(out.Stderr)
	if strings.TrimSpace(text) == "" {
		text = string(out.Stdout)
	}
	return out, &CommandError{Argv: c.Argv, Code: code, Stderr: text, Err: err}
}

// lineBuffer keeps the first maxOutput bytes and hands on each whole line.
type lineBuffer struct {
	kept, partial bytes.Buffer
	line          func(string)
}

func (b *lineBuffer) Write(p []byte) (int, error) {
	if room := maxOutput - b.kept.Len(); room > 0 {
		b.kept.Write(p[:min(room, len(p))])
	}
	if b.line == nil {
		return len(p), nil
	}
	b.partial.Write(p)
	for {
		i := bytes.IndexByte(b.partial.Bytes(), '\n')
		if i < 0 {
			if b.partial.Len() > maxOutput {
				b.flush()
			}
			return len(p), nil
		}
		b.line(strings.TrimRight(string(b.partial.Next(i+1)), "\r\n"))
	}
}

func (b *lineBuffer) flush() {
	if b.line != nil && b.partial.Len() > 0 {
		b.line(b.partial.String())
	}
	b.partial.Reset()
}

func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
