package hostexec

import (
	"errors"
	"fmt"
	"time"
)

// ErrUnitExists means that a transient unit of this name is loaded already.
var ErrUnitExists = errors.New("unit exists")

// Unit is what systemd says of a unit.
type Unit struct {
	Name        string
	LoadState   string // loaded, not-found, masked, …
	ActiveState string // active, inactive, failed, activating, deactivating
	SubState    string
	Result      string // of the last run: success, exit-code, signal, …
	Fragment    string // the unit file's path
	DropIns     []string
	ExecStart   [][]string // argv of each ExecStart, variables not expanded
	Environment []string   // KEY=value of Environment=
	EnvFiles    []EnvFile
	KillMode    string
	MainPID     int
	ExitStatus  int    // of the main process that ended last
	Restarts    uint32 // automatic restarts by systemd
	Job         uint32 // the number of the job that is queued for it; 0: none
}

// EnvFile is an EnvironmentFile= line; Optional is its leading "-".
type EnvFile struct {
	Path     string
	Optional bool
}

// Exists tells whether systemd has a definition of the unit.
func (u Unit) Exists() bool { return u.LoadState != "not-found" && u.LoadState != "" }

// Running tells whether the unit is up or on its way up. A unit that systemd
// restarts by itself is: it waits as activating, and is then for an instant
// inactive with a job.
func (u Unit) Running() bool {
	switch u.ActiveState {
	case "active", "activating", "reloading":
		return true
	case "inactive", "failed":
		return u.Job != 0
	default:
		return false
	}
}

// Binary is the path of the program that the unit starts: the last ExecStart's
// first word.
func (u Unit) Binary() (string, error) {
	if len(u.ExecStart) == 0 || len(u.ExecStart[len(u.ExecStart)-1]) == 0 {
		return "", fmt.Errorf("%s: no ExecStart", u.Name)
	}
	return u.ExecStart[len(u.ExecStart)-1][0], nil
}

// Transient is a service that systemd runs once, outside the caller's cgroup
// and life. When its process is killed, systemd starts it again as it was,
// after a second and at most five times in ten minutes: it has to be
// idempotent.
type Transient struct {
	Name        string // with .service
	Description string
	Argv        []string // no "$" and no ";" in it: systemd does not keep them
	Env         []string
	// Log is the file that both outputs are appended to.
	Log string
	// StopGrace is how long SIGTERM may take before SIGKILL.
	StopGrace time.Duration
}

// JobError is a systemd job that did not end as "done".
type JobError struct {
	Verb, Unit, Result string
}

func (e *JobError) Error() string {
	return fmt.Sprintf("%s %s: systemd job ended as %q", e.Verb, e.Unit, e.Result)
}
