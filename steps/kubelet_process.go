package steps

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

// ticksPerSecond is the unit of times in /proc; it is the same on every Linux
// that Go runs on (USER_HZ).
const ticksPerSecond = 100

// startTicks is when a process started, in ticks after boot.
func startTicks(host hostexec.FS, pid int) (uint64, error) {
	file := fmt.Sprintf("/proc/%d/stat", pid)
	data, err := host.ReadFile(file)
	if err != nil {
		return 0, err
	}
	// The program's name, in parentheses, may have blanks and parentheses.
	_, rest, ok := strings.Cut(string(data[strings.LastIndexByte(string(data), ')')+1:]), " ")
	fields := strings.Fields(rest)
	if !ok || len(fields) < 20 {
		return 0, fmt.Errorf("read %s: %d fields", file, len(fields))
	}
	ticks, err := strconv.ParseUint(fields[19], 10, 64) // field 22 of proc_pid_stat(5)
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", file, err)
	}
	return ticks, nil
}

// processStart is when a process started, by the node's clock of now.
func processStart(env Env, pid int) (time.Time, error) {
	ticks, err := startTicks(env.Host.FS, pid)
	if err != nil {
		return time.Time{}, err
	}
	data, err := env.Host.FS.ReadFile("/proc/uptime")
	if err != nil {
		return time.Time{}, err
	}
	first, _, _ := strings.Cut(string(data), " ")
	uptime, err := strconv.ParseFloat(strings.TrimSpace(first), 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("read /proc/uptime: %w", err)
	}
	age := uptime - float64(ticks)/ticksPerSecond
	return env.Clock.Now().Add(-time.Duration(age * float64(time.Second))), nil
}
