package steps

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

// StateDir is where the upgrader keeps what it knows, on the host.
const StateDir = "/var/lib/upgrader"

// Store is where bundles are staged, on the host.
const Store = StateDir + "/bundles"

// Record is the directory of one run on the host: what the steps have to
// remember across a crash, and the originals of what they replaced.
type Record struct {
	fs      hostexec.FS
	dir     string
	journal *Journal
}

// NewRecord is the record of the run with this id; nothing is written yet.
func NewRecord(fs hostexec.FS, runID string) Record {
	r := Record{fs: fs, dir: path.Join(StateDir, "runs", runID)}
	r.journal = &Journal{fs: fs, path: r.Path(journalFile), run: Run{ID: runID}, now: SystemClock().Now}
	return r
}

// Journal is the run's journal, the same one for all copies of the record.
func (r Record) Journal() *Journal { return r.journal }

// Path is the host's path of a file of the run.
func (r Record) Path(elem ...string) string { return path.Join(append([]string{r.dir}, elem...)...) }

// Init makes the run's directory, readable by root alone.
func (r Record) Init() error { return r.fs.MkdirAll(r.dir, 0o700) }

// Save keeps v as JSON under name; it is durable when Save returns, and
// replaces what was kept before atomically.
func (r Record) Save(ctx context.Context, name string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("record %s: %w", name, err)
	}
	if err := r.Init(); err != nil {
		return err
	}
	return r.fs.WriteFile(ctx, r.Path(name+".json"), append(data, '\n'), 0o600)
}

// Load reads what was kept under name; false when there is nothing.
func (r Record) Load(name string, v any) (bool, error) {
	data, err := r.fs.ReadFile(r.Path(name + ".json"))
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if err := json.Unmarshal(data, v); err != nil {
		return false, &HintError{
			Err:  fmt.Errorf("read %s: %w", r.Path(name+".json"), err),
			Hint: "the run's record is damaged: move " + r.dir + " away and run the upgrader again",
		}
	}
	return true, nil
}
