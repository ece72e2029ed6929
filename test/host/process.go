package host

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// process names a process so that it is not mistaken for a later one with the
// same PID: Start is its start time in clock ticks since the machine booted.
type process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"`
}

// lookup records a live process.
func lookup(pid int) (process, error) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return process{}, err
	}
	start, _, err := parseStat(data)
	return process{PID: pid, Start: start}, err
}

// parseStat returns field 22 (start time) and field 3 (state) of
// /proc/PID/stat. The second field, the command, may hold spaces and brackets.
func parseStat(data []byte) (start uint64, state byte, err error) {
	end := bytes.LastIndexByte(data, ')')
	if end < 0 {
		return 0, 0, fmt.Errorf("unexpected /proc/PID/stat %q", data)
	}
	fields := strings.Fields(string(data[end+1:]))
	if len(fields) < 20 {
		return 0, 0, fmt.Errorf("unexpected /proc/PID/stat %q", data)
	}
	start, err = strconv.ParseUint(fields[19], 10, 64)
	return start, fields[0][0], err
}

// alive tells whether this very process is there and is no zombie.
func (p process) alive() bool {
	if p.PID <= 0 {
		return false
	}
	data, err := os.ReadFile("/proc/" + strconv.Itoa(p.PID) + "/stat")
	if err != nil {
		return false
	}
	start, state, err := parseStat(data)
	return err == nil && start == p.Start && state != 'Z' && state != 'X'
}

// open returns a descriptor of this very process, or ErrNotRunning.
func (p process) open() (*os.File, error) {
	if p.PID <= 0 {
		return nil, ErrNotRunning
	}
	fd, err := unix.PidfdOpen(p.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil, ErrNotRunning
	}
	if err != nil {
		return nil, fmt.Errorf("pidfd_open %d: %w", p.PID, err)
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	if !p.alive() { // the PID is another process's, or its owner is dead
		f.Close()
		return nil, ErrNotRunning
	}
	return f, nil
}

// signal sends sig to this very process. A process that is gone is no error.
func (p process) signal(sig unix.Signal) error {
	f, err := p.open()
	if errors.Is(err, ErrNotRunning) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	err = unix.PidfdSendSignal(int(f.Fd()), sig, nil, 0)
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("signal %d to process %d: %w", sig, p.PID, err)
	}
	return nil
}

// kill ends this very process and waits until it is gone.
func (p process) kill() error {
	if err := p.signal(unix.SIGKILL); err != nil {
		return err
	}
	if !p.waitGone(20 * time.Second) {
		return fmt.Errorf("process %d is still there 20 s after SIGKILL", p.PID)
	}
	return nil
}

func (p process) waitGone(limit time.Duration) bool {
	for end := time.Now().Add(limit); p.alive(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// bootID names the machine's current boot: PIDs of another one mean nothing.
func bootID() string {
	data, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(data))
}
