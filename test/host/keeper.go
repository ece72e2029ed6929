package host

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// bootSpec is what the keeper and the init stage are told.
type bootSpec struct {
	Name    string   `json:"name"`
	Disk    string   `json:"disk"`
	Layers  []string `json:"layers"`
	Cgroups []string `json:"cgroups"`
	Persist bool     `json:"persist"`
	Console string   `json:"console"` // the keeper's word to the init stage
}

// runKeeper is the stage that a host's PID 1 is a child of. Its input is the
// spec, "go" when the network is there, and then the lifeline: when that ends
// and the host is not persistent, the host is killed. Its output: the PID, then
// whether systemd was started. It ends with PID 1.
func runKeeper() error {
	// PID 1 dies with the thread that made it.
	runtime.LockOSThread()
	in := bufio.NewReader(os.Stdin)
	line, err := in.ReadBytes('\n')
	if err != nil {
		return err
	}
	var spec bootSpec
	if err := json.Unmarshal(line, &spec); err != nil {
		return err
	}
	if err := keep(spec, in); err != nil {
		return errors.Join(err, reportError(err).write(os.Stdout))
	}
	return nil
}

func keep(spec bootSpec, in *bufio.Reader) error {
	var err error
	if spec.Console, err = newConsole(os.Stderr); err != nil {
		return err
	}
	own, err := ownCgroups()
	if err != nil {
		return err
	}
	// A cgroup namespace begins where its maker is. The keeper must leave
	// again: in v2 systemd cannot manage a cgroup that holds others.
	if err := joinCgroups(spec.Cgroups); err != nil {
		return err
	}
	status, statusWrite, err := os.Pipe()
	if err != nil {
		return err
	}
	cmd := stage(stageInit)
	cmd.Stderr = os.Stderr
	cmd.ExtraFiles = []*os.File{statusWrite} // descriptor 3
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWPID |
			unix.CLONE_NEWNET | unix.CLONE_NEWCGROUP,
		Setsid: true,
	}
	cmd.Stdout = os.Stderr
	toInit, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start PID 1 in new namespaces: %w", err)
	}
	statusWrite.Close()
	if err := followInit(spec, in, toInit, cmd.Process, status, own); err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return err
	}
	_ = cmd.Wait()
	return nil
}

func followInit(spec bootSpec, in *bufio.Reader, toInit io.WriteCloser, init *os.Process, status *os.File, own []string) error {
	if err := joinCgroups(own); err != nil {
		return err
	}
	if err := json.NewEncoder(toInit).Encode(spec); err != nil {
		return err
	}
	if err := (report{PID: init.Pid}).write(os.Stdout); err != nil {
		return err
	}
	line, err := in.ReadString('\n')
	if err != nil {
		return fmt.Errorf("wait for the network: %w", err)
	}
	if _, err := io.WriteString(toInit, line); err != nil {
		return err
	}
	// The pipe is closed by a successful execution of systemd.
	var r report
	if err := json.NewDecoder(status).Decode(&r); !errors.Is(err, io.EOF) {
		return errors.Join(err, r.err())
	}
	if err := (report{Started: true}).write(os.Stdout); err != nil {
		return err
	}
	os.Stdout.Close()
	if !spec.Persist {
		go func() {
			_, _ = io.Copy(io.Discard, in)
			_ = init.Kill()
		}()
	}
	return nil
}
