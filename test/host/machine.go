package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
)

// Sentinels that callers decide on.
var (
	// ErrRefused is a boot that was not done because the root file system is
	// not certainly that of a throwaway host.
	ErrRefused = errors.New("not the root of a throwaway host")
	// ErrNotRunning is anything asked of a host that is off.
	ErrNotRunning = errors.New("host is not running")
)

// Machine is a throwaway machine: it can be switched on, used, and broken.
type Machine interface {
	// Name is the host name, IP its address on the ground's bridge.
	Name() string
	IP() string

	// Boot starts the machine on its disk and returns when systemd has
	// finished starting ("running" or "degraded"). Booting a running machine
	// is an error. A boot that fails leaves nothing running.
	Boot(ctx context.Context) error
	// Running tells whether the machine's PID 1 is alive.
	Running() bool
	// Exec runs a command as root inside the machine and waits for it. A
	// command that exits with another code than 0 is an *ExitError, and the
	// Result is returned all the same. When ctx ends, the command and its
	// process group are killed.
	Exec(ctx context.Context, cmd Cmd) (Result, error)

	// CopyIn copies a file or a directory of this machine to the path dst,
	// which is the copy's own name, not its parent's. Modes are kept, owners
	// are root, parents are made.
	CopyIn(src, dst string) error
	// ReadFile reads a file; symbolic links are resolved inside the machine.
	ReadFile(name string) ([]byte, error)
	// WriteFile writes a file, in place if it exists; parents are made.
	WriteFile(name string, data []byte, mode fs.FileMode) error

	// PowerOff stops the machine as its power button does. It gives systemd
	// 45 s (or what ctx leaves), then kills what is left. Not running is no
	// error.
	PowerOff(ctx context.Context) error
	// Crash ends every process of the machine at once, without warning, and
	// returns when all are gone. Not running is no error.
	Crash() error
	// Snapshot copies the disk of a machine that is off into dir, which must
	// not exist. A new machine starts from it with Spec.From.
	Snapshot(dir string) error
	// Close crashes the machine and deletes its disk.
	Close() error
}

// Cmd is a command to run inside a machine.
type Cmd struct {
	Args []string // argv; looked up in the host's usual PATH
	Env  []string // added to PATH, HOME, TERM, KUBECONFIG
	Dir  string   // default /root

	Stdin          io.Reader
	Stdout, Stderr io.Writer // if set, output goes there and not to Result

	// Terminal leaves the command in the caller's process group and session,
	// so that a shell can use the caller's terminal.
	Terminal bool
}

// Command is a Cmd of nothing but an argv.
func Command(args ...string) Cmd { return Cmd{Args: args} }

// Result is how a command ended, with what it wrote unless Cmd took it.
type Result struct {
	Code           int
	Stdout, Stderr string
}

// ExitError is a command that ended with another code than 0.
type ExitError struct {
	Machine string
	Args    []string
	Code    int
	Stderr  string
}

func (e *ExitError) Error() string {
	text := fmt.Sprintf("%s: %s: exit code %d", e.Machine, strings.Join(e.Args, " "), e.Code)
	if s := strings.TrimSpace(e.Stderr); s != "" {
		text += ": " + tail(s, 2000)
	}
	return text
}

// tail is the last n bytes of s, from the start of a line where it can.
func tail(s string, n int) string {
	if len(s) <= n {
		return s
	}
	s = s[len(s)-n:]
	if i := strings.IndexByte(s, '\n'); i >= 0 && i < len(s)-1 {
		s = s[i+1:]
	}
	return "… " + s
}
