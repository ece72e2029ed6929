package steps

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/node-upgrader/node-upgrader/steps/cri"
)

// runcState is the part of runc's state.json that says where `runc ps` looks.
type runcState struct {
	PID     int               `json:"init_process_pid"`
	Started json.Number       `json:"init_process_start"` // as in proc_pid_stat(5); older runc wrote a string
	Cgroups map[string]string `json:"cgroup_paths"`       // controller: directory
}

// home is the one directory whose processes runc takes for the container's:
// that of the devices controller on cgroup v1, the only one on v2
// (GetAllPids in runc's cgroup managers).
func (s runcState) home() string {
	if dir := s.Cgroups["devices"]; dir != "" {
		return dir
	}
	return s.Cgroups[""]
}

// readRuncState reads the state of a container; false when runc has none.
func readRuncState(env Env, stateDir string, s shim) (runcState, bool, error) {
	var state runcState
	file := path.Join(stateDir, "runc", s.namespace, s.ID, "state.json")
	data, err := env.Host.FS.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return state, false, nil
	}
	if err != nil {
		return state, false, err
	}
	if err := json.Unmarshal(data, &state); err != nil {
		return state, false, fmt.Errorf("read %s: %w", file, err)
	}
	return state, true, nil
}

// remedy is how a container is kept from being thrown away: its processes go
// back into the cgroup that runc made for it.
type remedy struct {
	dir  string
	pids []int
}

func (r remedy) String() string {
	pids := make([]string, len(r.pids))
	for i, p := range r.pids {
		pids[i] = strconv.Itoa(p)
	}
	return "process " + strings.Join(pids, ", ") + " back into " + r.dir
}

// errNoRemedy is a loss that cannot be prevented.
var errNoRemedy = errors.New("it cannot be helped")

// findRemedy says how to prevent a loss, or errNoRemedy with the reason. It
// changes nothing.
//
// How it comes to be: on cgroup v1, Delegate= of a scope does not cover the
// devices controller, which systemd gives to a scope only once it has a
// DevicePolicy= or DeviceAllow=. runc makes the scope first, puts the process
// into the scope's devices cgroup itself, and sets these properties later. When
// systemd sets up the scope's controllers in between, it moves the process to
// the nearest cgroup above that has the controller, the pod's slice, and leaves
// it there; all its other cgroups are the container's own. Seen with systemd
// 252 on two to five of eight sandboxes after a boot, and only on sandboxes.
func findRemedy(env Env, stateDir string, l loss) (remedy, error) {
	state, found, err := readRuncState(env, stateDir, l.shim)
	if err != nil {
		return remedy{}, err
	}
	home := state.home()
	if !found || home == "" {
		return remedy{}, fmt.Errorf("%w: runc does not know the container", errNoRemedy)
	}
	there, err := processesIn(env, home)
	if err != nil {
		return remedy{}, err
	}
	pids := map[int]bool{l.pid: true}
	for controller, dir := range state.Cgroups {
		if controller == "" && dir != home {
			continue // the unified hierarchy of a hybrid one
		}
		elsewhere, err := processesIn(env, dir)
		if err != nil {
			return remedy{}, err
		}
		for _, p := range elsewhere {
			pids[p] = true
		}
	}
	r := remedy{dir: home}
	for p := range pids {
		if !slices.Contains(there, p) {
			r.pids = append(r.pids, p)
		}
	}
	slices.Sort(r.pids)
	if len(r.pids) == 0 {
		return r, fmt.Errorf("%w: its processes are where they should be", errNoRemedy)
	}
	return r, nil
}

// processesIn are the processes in a cgroup itself; none when it is gone.
func processesIn(env Env, dir string) ([]int, error) {
	data, err := env.Host.FS.ReadFile(path.Join(dir, "cgroup.procs"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var pids []int
	for field := range strings.FieldsSeq(string(data)) {
		if p, err := strconv.Atoi(field); err == nil {
			pids = append(pids, p)
		}
	}
	return pids, nil
}

// apply moves the processes. One that has ended since is no error.
func (r remedy) apply(env Env) error {
	// systemd removes a cgroup that it emptied; one made again has its
	// parent's device rules, under which the process is now.
	if err := env.Host.FS.MkdirAll(r.dir, 0o755); err != nil {
		return err
	}
	for _, p := range r.pids {
		err := env.Host.FS.WriteControl(path.Join(r.dir, "cgroup.procs"), strconv.Itoa(p))
		if err == nil {
			continue
		}
		if alive, look := runs(env.Host.FS, p); look != nil || alive {
			return fmt.Errorf("move process %d into %s: %w", p, r.dir, err)
		}
	}
	return nil
}

// preventLosses makes sure that a containerd that starts now keeps every
// container that runs, and returns those for which it cannot, after it has asked
// again and again: systemd may be moving them still, and on a busy machine a shim
// may answer late. Nothing of it lasts or has to be undone: the processes are
// where their container was made.
func preventLosses(ctx context.Context, env Env, stateDir string) ([]loss, error) {
	for look := range lossLooks - 1 {
		losses, err := findLosses(ctx, env, stateDir, asksAtOnce(look))
		if err != nil || len(losses) == 0 {
			return nil, err
		}
		if helpLosses(env, stateDir, losses) {
			continue
		}
		if err := env.Clock.Sleep(ctx, lossPause); err != nil {
			return nil, err
		}
	}
	return findLosses(ctx, env, stateDir, asksAtOnce(lossLooks))
}

// helpLosses does what can be done for each, and tells whether that was anything.
func helpLosses(env Env, stateDir string, losses []loss) (helped bool) {
	for _, l := range losses {
		r, err := findRemedy(env, stateDir, l)
		if err == nil {
			err = r.apply(env)
		}
		if err != nil {
			env.Log.Warn("cannot keep", "container", l.String(), "reason", err.Error())
			continue
		}
		helped = true
		env.Log.Warn("kept from being thrown away", "container", l.String(), "move", r.String())
	}
	return helped
}

// started tells whether the process that runc started is the one that runs
// under this number now.
func (s runcState) started(env Env, pid int) (bool, error) {
	now, err := cri.ProcessStart(env.Host.FS, pid)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && (s.PID != pid || s.Started == "" || s.Started.String() == strconv.FormatUint(now, 10)), err
}
