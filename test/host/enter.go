package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const searchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// enterSpec is what the enter stage is told.
type enterSpec struct {
	Args     []string `json:"args"`
	Env      []string `json:"env"`
	Dir      string   `json:"dir"`
	Cgroups  []string `json:"cgroups"`
	Terminal bool     `json:"terminal"`
}

// enter runs c in the namespaces of target, a descriptor of a host's PID 1, and
// returns its exit code. The helper in between is this program.
func enter(ctx context.Context, target *os.File, cgroups []string, c Cmd, stdout, stderr io.Writer) (int, error) {
	if len(c.Args) == 0 {
		return -1, errors.New("no command")
	}
	if c.Stdout != nil {
		stdout = c.Stdout
	}
	if c.Stderr != nil {
		stderr = c.Stderr
	}
	specRead, specWrite, err := os.Pipe()
	if err != nil {
		return -1, err
	}
	defer specRead.Close()
	defer specWrite.Close()
	problems, problemsWrite, err := os.Pipe()
	if err != nil {
		return -1, err
	}
	defer problems.Close()
	defer problemsWrite.Close()

	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Args = []string{"node-upgrader-test-" + stageEnter, c.Args[0]}
	cmd.Env = append(os.Environ(), stageVariable+"="+stageEnter)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = c.Stdin, stdout, stderr
	cmd.ExtraFiles = []*os.File{specRead, target, problemsWrite} // descriptors 3, 4, 5
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) }
	cmd.WaitDelay = 3 * time.Second
	if !c.Terminal {
		// ctrl-C at the caller's terminal is for the caller.
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	}
	if err := cmd.Start(); err != nil {
		return -1, err
	}
	specRead.Close()
	problemsWrite.Close()
	spec := enterSpec{Args: c.Args, Env: c.Env, Dir: c.Dir, Cgroups: cgroups, Terminal: c.Terminal}
	err = json.NewEncoder(specWrite).Encode(spec)
	specWrite.Close()
	waited := cmd.Wait()
	var r report
	if json.NewDecoder(problems).Decode(&r) == nil && r.Error != "" {
		return -1, r.err()
	}
	var exit *exec.ExitError
	switch {
	case waited == nil:
		return 0, err
	case errors.As(waited, &exit) && exit.Exited():
		return exit.ExitCode(), err
	}
	return -1, errors.Join(err, waited)
}

// runEnter is the stage: it joins cgroups and namespaces and runs the command
// as a child, because a PID namespace is joined by children only.
func runEnter() (int, error) {
	problems := os.NewFile(5, "problems")
	unix.CloseOnExec(3)
	unix.CloseOnExec(4)
	unix.CloseOnExec(5)
	code, err := enterAndRun()
	if err != nil {
		return code, errors.Join(err, reportError(err).write(problems))
	}
	return code, nil
}

func enterAndRun() (int, error) {
	var spec enterSpec
	if err := json.NewDecoder(os.NewFile(3, "spec")).Decode(&spec); err != nil {
		return -1, err
	}
	// While the machine's file system is still to be seen. Without this the
	// host's /proc/self/cgroup would read "/..", which the kubelet and runc
	// cannot follow.
	for _, dir := range spec.Cgroups {
		admin := filepath.Join(dir, "admin")
		if err := makeCgroup(admin); err != nil {
			return -1, err
		}
		if err := joinCgroups([]string{admin}); err != nil {
			return -1, err
		}
	}
	runtime.LockOSThread() // the command's thread, with the host's namespaces
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return -1, fmt.Errorf("unshare: %w", err)
	}
	if err := unix.Setns(4, unix.CLONE_NEWNS|unix.CLONE_NEWUTS|unix.CLONE_NEWIPC|unix.CLONE_NEWNET|unix.CLONE_NEWPID|unix.CLONE_NEWCGROUP); err != nil {
		return -1, fmt.Errorf("enter namespaces: %w", err)
	}
	if text, err := os.ReadFile(marker); err != nil || string(text) != markerText {
		return -1, fmt.Errorf("%w: %s", ErrRefused, marker)
	}
	return runInside(spec)
}

func runInside(spec enterSpec) (int, error) {
	if err := os.Setenv("PATH", searchPath); err != nil { // for LookPath
		return -1, err
	}
	if spec.Dir == "" {
		spec.Dir = "/root"
	}
	term := "dumb"
	if spec.Terminal {
		term = os.Getenv("TERM")
	}
	cmd := exec.Command(spec.Args[0], spec.Args[1:]...) //nolint:noctx // its life is the signals' below
	cmd.Env = append([]string{
		"PATH=" + searchPath, "HOME=/root", "TERM=" + term, "LANG=C.UTF-8",
		"KUBECONFIG=/etc/kubernetes/admin.conf",
	}, spec.Env...)
	cmd.Dir = spec.Dir
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: !spec.Terminal}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT, unix.SIGHUP)
	if err := cmd.Start(); err != nil {
		return -1, err
	}
	go func() {
		for s := range signals {
			if !spec.Terminal {
				_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
			} else if s != unix.SIGINT { // which the terminal sent to both
				_ = cmd.Process.Signal(s)
			}
		}
	}()
	err := cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			return 128 + int(status.Signal()), nil
		}
		return exit.ExitCode(), nil
	}
	return 0, err
}
