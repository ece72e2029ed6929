package steps

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/node-upgrader/node-upgrader/steps/cri"
)

// The names of what the containerd step keeps in the run's record.
const (
	containersBefore  = "containers-before"
	containersChanged = "containers-changed"
)

// survey is the containers that ran right before containerd was stopped.
type survey struct {
	// Daemon is the containerd that was asked. While it runs nothing has
	// happened yet.
	Daemon process `json:"daemon"`
	// Boot is the kernel's id of the boot in which they ran.
	Boot       string          `json:"boot,omitempty"`
	Containers []cri.Container `json:"containers"`
	// Compared means that what became of them is known and was reported.
	Compared bool `json:"compared"`
}

// process names a process for as long as the machine is up.
type process struct {
	PID     int    `json:"pid"`
	Started uint64 `json:"started"`
}

// ChangedContainer is a container that did not simply go on across containerd's
// restart. The containerd step keeps a list of them as "containers-changed".
type ChangedContainer struct {
	cri.Container
	// What became of it: "restarted" (another one of its name runs),
	// "ended" (by itself, or the kubelet removed it), "orphaned" (its process
	// runs, containerd does not know of it), "lost" (made by a new containerd,
	// unknown to the old one that was put back) or "gone".
	What string `json:"what"`
	// NowPID is the process of the one that runs instead.
	NowPID int `json:"nowPID,omitempty"`
}

func (c ChangedContainer) String() string {
	name := "container " + c.Name
	if c.Sandbox {
		name = "sandbox"
	}
	text := fmt.Sprintf("%s of pod %s/%s: %s", name, c.Namespace, c.Pod, c.What)
	switch {
	case c.NowPID != 0:
		return fmt.Sprintf("%s (pid %d → %d)", text, c.PID, c.NowPID)
	case c.What == "orphaned":
		return fmt.Sprintf("%s (pid %d goes on without containerd)", text, c.PID)
	}
	return text
}

// surveyContainers keeps what runs now. What an interrupted attempt kept is not
// overwritten: once containerd was stopped, what runs is no longer what ran.
func surveyContainers(ctx context.Context, env Env, daemonPID int) error {
	var kept survey
	found, err := env.Record.Load(containersBefore, &kept)
	if err != nil {
		return err
	}
	now, err := processOf(env, daemonPID)
	if err != nil {
		return err
	}
	if found && !kept.Compared && kept.Daemon != now && !kept.rebooted(env) {
		env.Log.Info("resuming", "containers", len(kept.Containers))
		return nil
	}
	client, err := env.Runtime(ctx)
	if err != nil {
		return err
	}
	defer client.Close()
	containers, err := client.Containers(ctx)
	if err != nil {
		// A containerd that does not work is no reason not to replace it.
		env.Log.Warn("containers cannot be compared, containerd does not answer", "reason", err.Error())
	}
	return env.Record.Save(ctx, containersBefore, survey{Daemon: now, Boot: env.Staging.BootID, Containers: containers})
}

// rebooted tells whether the machine has been started anew since: no container
// of before can run any more, and the numbers of its processes are others'.
func (s survey) rebooted(env Env) bool { return s.Boot != env.Staging.BootID }

func processOf(env Env, pid int) (process, error) {
	if pid <= 0 {
		return process{}, nil
	}
	started, err := cri.ProcessStart(env.Host.FS, pid)
	if errors.Is(err, os.ErrNotExist) {
		return process{}, nil
	}
	return process{PID: pid, Started: started}, err
}

// comparisonPending tells whether containerd was restarted and nobody has
// looked what became of the containers.
func comparisonPending(env Env) (bool, error) {
	var kept survey
	found, err := env.Record.Load(containersBefore, &kept)
	return found && !kept.Compared, err
}

// compareContainers reports what became of the containers that were surveyed,
// by name as warnings and in the record. It waits up to patience for the
// kubelet to start again what was lost, and fails only when something is still
// missing then.
func compareContainers(ctx context.Context, env Env, patience time.Duration) error {
	var kept survey
	found, err := env.Record.Load(containersBefore, &kept)
	if err != nil || !found || kept.Compared {
		return err
	}
	if kept.rebooted(env) {
		env.Log.Warn("the machine was rebooted, containers cannot be compared", "before", len(kept.Containers))
		kept.Compared = true
		return env.Record.Save(ctx, containersBefore, kept)
	}
	var changed []ChangedContainer
	waiting, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not within %s", patience))
	defer cancel()
	lost := poll(waiting, env, time.Second, func(ctx context.Context) error {
		found, err := changedContainers(ctx, env, kept.Containers)
		if err != nil {
			return err
		}
		changed = found
		return missing(changed)
	})
	if ctx.Err() != nil { // to be done by the next attempt
		return fmt.Errorf("compare the containers: %w", lost)
	}
	if lost != nil && settle(changed) {
		lost = nil
	}
	for _, c := range changed {
		env.Log.Warn(c.String(), "event", "container", "id", c.ID)
	}
	if lost == nil {
		env.Log.Info("containers went on", "count", len(kept.Containers)-len(changed), "before", len(kept.Containers))
	}
	kept.Compared = true
	unrecorded := errors.Join(env.Record.Save(ctx, containersChanged, changed), env.Record.Save(ctx, containersBefore, kept))
	if lost != nil {
		return &leaveError{&HintError{
			Err:  errors.Join(fmt.Errorf("containers did not come back after containerd's restart: %w", lost), unrecorded),
			Hint: "crictl pods; crictl ps -a; journalctl -u kubelet -u containerd",
		}}
	}
	return unrecorded
}

// missing is an error while a container is neither there again nor ended.
func missing(changed []ChangedContainer) error {
	var names []string
	for _, c := range changed {
		if c.What == "gone" || c.What == "orphaned" {
			names = append(names, c.String())
		}
	}
	if len(names) == 0 {
		return nil
	}
	return errors.New(strings.Join(names, "; "))
}

// settle decides about the sandboxes that stayed away: one whose containers all
// ended by themselves belonged to a pod that ended in the meantime. It tells
// whether nothing is missing then.
func settle(changed []ChangedContainer) bool {
	lost := map[string]bool{}
	for _, c := range changed {
		if !c.Sandbox && (c.What == "gone" || c.What == "orphaned") {
			lost[c.Namespace+"/"+c.Pod] = true
		}
	}
	for i, c := range changed {
		if c.Sandbox && c.What == "gone" && !lost[c.Namespace+"/"+c.Pod] {
			changed[i].What = "ended"
		}
	}
	return changed != nil && missing(changed) == nil
}

// changedContainers compares what ran with what runs.
func changedContainers(ctx context.Context, env Env, before []cri.Container) ([]ChangedContainer, error) {
	client, err := env.Runtime(ctx)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	now, err := client.Containers(ctx)
	if err != nil {
		return nil, err
	}
	type name struct {
		sandbox              bool
		namespace, pod, name string
	}
	byID, byName := map[string]cri.Container{}, map[name]cri.Container{}
	for _, c := range now {
		byID[c.ID] = c
		byName[name{c.Sandbox, c.Namespace, c.Pod, c.Name}] = c
	}
	changed := []ChangedContainer{}
	for _, c := range before {
		same, there := byID[c.ID]
		if there && same.PID == c.PID && same.Started == c.Started {
			continue
		}
		if !there {
			same, there = byName[name{c.Sandbox, c.Namespace, c.Pod, c.Name}]
		}
		if there {
			changed = append(changed, ChangedContainer{Container: c, What: "restarted", NowPID: same.PID})
			continue
		}
		what, err := whatBecame(ctx, env, client, c)
		if err != nil {
			return nil, err
		}
		changed = append(changed, ChangedContainer{Container: c, What: what})
	}
	return changed, nil
}

// whatBecame says what became of a container that is not there.
func whatBecame(ctx context.Context, env Env, client cri.Client, c cri.Container) (string, error) {
	now, err := processOf(env, c.PID)
	if err != nil {
		return "", err
	}
	if c.PID != 0 && now == (process{c.PID, c.Started}) {
		return "orphaned", nil
	}
	if c.Sandbox {
		return "gone", nil
	}
	ended, err := client.Ended(ctx, c.ID)
	if err == nil && ended {
		return "ended", nil
	}
	return "gone", err
}
