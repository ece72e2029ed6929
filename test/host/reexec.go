package host

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
)

const (
	stageVariable = "NODE_UPGRADER_TEST_STAGE"

	stageLAN    = "lan"    // holds the bridge's network namespace
	stageKeeper = "keeper" // starts a host's PID 1 and waits for it
	stageInit   = "init"   // mounts and becomes the host's systemd
	stageEnter  = "enter"  // joins a host's namespaces and runs a command
)

// Reexec is to be called first in main or TestMain of every program that opens
// a ground: hosts are booted and entered by that same program, executed again
// with a variable in its environment. In such a process Reexec does that work
// and never returns; in all others it returns at once.
func Reexec() {
	stage, ok := os.LookupEnv(stageVariable)
	if !ok {
		return
	}
	// Not to be handed on to what is executed from here.
	var code int
	err := os.Unsetenv(stageVariable)
	if err != nil {
		stage = ""
	}
	switch stage {
	case stageLAN:
		err = runLAN()
	case stageKeeper:
		err = runKeeper()
	case stageInit:
		err = runInit()
	case stageEnter:
		code, err = runEnter()
	default:
		err = errors.Join(err, fmt.Errorf("unknown stage %q", stage))
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", stage, err)
		code = 125
	}
	os.Exit(code) //nolint:forbidigo // this process's main is not the caller's
}

// stage is this program as one of the stages. The caller's context is not the
// process's: hosts outlive the call that starts them.
func stage(name string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe") //nolint:noctx // see above
	cmd.Args = []string{"node-upgrader-test-" + name}
	cmd.Env = append(os.Environ(), stageVariable+"="+name)
	return cmd
}

// report is what a stage writes back to whoever started it, one JSON value a
// line.
type report struct {
	PID     int    `json:"pid,omitempty"`
	Error   string `json:"error,omitempty"`
	Refused bool   `json:"refused,omitempty"`
	Started bool   `json:"started,omitempty"`
}

func (r report) err() error {
	switch {
	case r.Refused:
		return refusal(r.Error)
	case r.Error != "":
		return errors.New(r.Error)
	}
	return nil
}

// refusal is an ErrRefused with the text of another process's.
type refusal string

func (r refusal) Error() string        { return string(r) }
func (r refusal) Is(target error) bool { return target == ErrRefused } //nolint:errorlint // the sentinel itself

func reportError(err error) report {
	return report{Error: err.Error(), Refused: errors.Is(err, ErrRefused)}
}

func (r report) write(f *os.File) error { return json.NewEncoder(f).Encode(r) }
