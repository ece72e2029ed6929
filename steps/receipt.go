package steps

import (
	"cmp"
	"context"
	"errors"
	"path"
	"strings"
	"time"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

// Receipt is what a run did to the node, in one document: written at its end.
type Receipt struct {
	Schema int `json:"schema"`
	Run
	Started time.Time `json:"started"`
	Ended   time.Time `json:"ended"`
	// Outcome is how the run ended: done, rolled back, abandoned, …; "open" for
	// one that goes on.
	Outcome string        `json:"outcome"`
	Steps   []Result      `json:"steps"`
	Files   []FileReceipt `json:"files"`
	// Containers are those that did not run through: restarted or lost.
	Containers []ChangedContainer `json:"containers"`
}

// FileReceipt is a file of the host before the run and now: sha256, or "absent".
type FileReceipt struct {
	Path   string `json:"path"`
	Step   string `json:"step"`
	Before string `json:"before"`
	After  string `json:"after"`
}

const receiptName = "receipt"

// saveReceipt writes the receipt of a run that ends.
func saveReceipt(ctx context.Context, env Env, how string) error {
	receipt, err := makeReceipt(ctx, env, how)
	if err != nil {
		return err
	}
	return env.Record.Save(ctx, receiptName, receipt)
}

func makeReceipt(ctx context.Context, env Env, how string) (Receipt, error) {
	history, err := env.Record.Journal().History()
	if err != nil {
		return Receipt{}, err
	}
	r := Receipt{
		Schema: 1, Run: history.Run, Started: history.Started, Ended: history.Ended, Outcome: how,
		Steps: history.Results, Files: []FileReceipt{}, Containers: []ChangedContainer{},
	}
	if r.Steps == nil {
		r.Steps = []Result{}
	}
	for _, k := range history.Touched {
		now, err := digestOrAbsent(ctx, env.Host.FS, k.Path)
		if err != nil {
			return r, err
		}
		r.Files = append(r.Files, FileReceipt{Path: k.Path, Step: k.Step, Before: k.Before, After: now})
	}
	var changed []ChangedContainer
	if _, err := env.Record.Load(containersChanged, &changed); err != nil {
		return r, err
	}
	r.Containers = append(r.Containers, changed...)
	return r, nil
}

// ReadReceipt is the receipt of a run; of one that is open, as it stands now.
func ReadReceipt(ctx context.Context, host hostexec.FS, id string) (Receipt, error) {
	env := Env{Host: hostexec.Host{FS: host}, Record: NewRecord(host, id)}
	history, err := env.Record.Journal().History()
	if err != nil {
		return Receipt{}, err
	}
	if history.Seq == 0 {
		ids, err := list(host, runsDir)
		return Receipt{}, errors.Join(err, &HintError{
			Err:  errors.New("there is no run " + id + " on this node"),
			Hint: "the runs are: " + cmp.Or(strings.Join(ids, ", "), "none") + " (upgrader status)",
		})
	}
	if history.Open {
		return makeReceipt(ctx, env, "open")
	}
	var r Receipt
	there, err := env.Record.Load(receiptName, &r)
	if err == nil && !there {
		return makeReceipt(ctx, env, history.Closed)
	}
	return r, err
}

// NewestRun is the run that was written to last; "" without one.
func NewestRun(host hostexec.FS) (string, error) {
	runs, err := allRuns(host)
	if err != nil || len(runs) == 0 {
		return "", err
	}
	return runs[0].ID, nil
}

// prune removes the records, with their backups, of the ended runs beyond the
// newest Options.KeepRuns, and the staged bundles that none of the others is of.
// An open run's, or one's that cannot be read, is never removed.
func prune(ctx context.Context, env Env) error {
	keep := env.Options.KeepRuns
	if keep <= 0 {
		keep = DefaultKeepRuns
	}
	runs, err := allRuns(env.Host.FS)
	if err != nil {
		return err
	}
	used := map[string]bool{}
	if env.Bundle != nil {
		used[bundleDir(env.Bundle.Digest)] = true
	}
	for _, run := range runs {
		ended := run.Error == "" && (!run.Open || !run.Begun)
		if ended && keep == 0 {
			env.Log.Info("removing the record of an old run", "run", run.ID, "ended", run.Ended)
			if err := env.Host.FS.RemoveAll(path.Join(runsDir, run.ID)); err != nil {
				return err
			}
			continue
		}
		if ended {
			keep--
		}
		if run.Error != "" { // who knows of which bundle it is
			return nil
		}
		used[bundleDir(run.Bundle)] = true
	}
	if err := releaseImages(ctx, env, used); err != nil {
		env.Log.Warn("pins of old images stay", "reason", err.Error())
	}
	staged, err := list(env.Host.FS, Store)
	if err != nil {
		return err
	}
	for _, name := range staged {
		dir := path.Join(Store, name)
		if name[0] == '.' || used[dir] {
			continue
		}
		env.Log.Info("removing a bundle that no run is of any more", "dir", dir)
		if err := env.Host.FS.RemoveAll(dir); err != nil {
			return err
		}
	}
	return nil
}
