package steps

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

// journalFile is a run's journal: one JSON object a line, only ever appended
// to, each line on the disk before the change that it announces is made.
const journalFile = "journal.jsonl"

// journalSchema is the version of the journal's format. A higher one is
// refused: what it says may not be understood.
const journalSchema = 1

// Event is what a line of the journal is about.
type Event string

// The events of a run.
const (
	EventOpen   Event = "open"   // the run begins, or begins anew after its end
	EventStep   Event = "step"   // a step begins
	EventKeep   Event = "keep"   // the original of a file lies in the backup
	EventIntent Event = "intent" // a change of the host is about to be made
	EventDone   Event = "done"   // it was made
	EventFailed Event = "failed" // it was not made, or in part
	EventSwap   Event = "swap"   // where the swap of a service's files stands
	EventResult Event = "result" // a step ended
	EventUndo   Event = "undo"   // a step's rollback begins
	EventUndone Event = "undone" // it is complete
	EventClose  Event = "close"  // the run ended
)

// Entry is one line of a journal.
type Entry struct {
	Seq    int       `json:"seq"` // from 1, without gaps
	Time   time.Time `json:"time"`
	Event  Event     `json:"event"`
	Step   string    `json:"step,omitempty"`
	Schema int       `json:"schema,omitempty"` // with open
	Run    *Run      `json:"run,omitempty"`    // with open
	// Op and Object are those of hostexec.Effect; Of is the intent's Seq.
	Op     string      `json:"op,omitempty"`
	Object string      `json:"object,omitempty"`
	Of     int         `json:"of,omitempty"`
	Kept   *Kept       `json:"kept,omitempty"`
	Swap   *swapRecord `json:"swap,omitempty"` // of the unit Object
	Result *Result     `json:"result,omitempty"`
	Reason string      `json:"reason,omitempty"` // of failed and close
}

// Run is what a run is for, and who asked for it.
type Run struct {
	ID         string `json:"id"`
	Bundle     string `json:"bundle"`
	Kubernetes string `json:"kubernetes"`
	Node       Node   `json:"node"`
	By         string `json:"by"`       // a pod, or a user of the host
	Upgrader   string `json:"upgrader"` // the program's version
}

// Kept is a file of the host and its original in the run's backup.
type Kept struct {
	Path string `json:"path"`
	// Before is the original's sha256, "absent" where there was none.
	Before string `json:"before"`
	// After is the sha256 of what takes its place, where that is known.
	After string `json:"after,omitempty"`
	// Linked: what is put back may be another name of the backup, as nobody
	// writes to such a file in its place.
	Linked bool `json:"linked,omitempty"`
	// Link is the text of the symbolic link that Path is: Before is the digest of
	// what it leads to, and the link itself lies in the backup with the suffix
	// ".link".
	Link string `json:"link,omitempty"`
}

// absent is the digest of a file that is not there.
const absent = "absent"

// Journal is the journal of one run, open for writing by the one process that
// holds the node's lock. It is read at the first use. As a hostexec.Watch it
// announces every change of the host, so that no step can forget to.
type Journal struct {
	fs   hostexec.FS
	path string

	mu      sync.Mutex
	run     Run
	now     func() time.Time
	history *History // nil: not read yet
	step    string
	intents map[hostexec.Effect]int
	lenient func(error) // not nil: an error is no reason not to go on
}

// Describe says what the run is for, for its first line.
func (j *Journal) Describe(run Run, now func() time.Time) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.run, j.now = run, now
}

// History is what the journal tells so far. It repairs nothing.
func (j *Journal) History() (History, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.history != nil {
		return *j.history, nil
	}
	h, _, _, err := readJournal(j.fs, j.path)
	return h, err
}

// Append makes e durable. A run that is not open is opened by it.
func (j *Journal) Append(e Entry) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	_, err := j.append(e)
	return j.forgive(err)
}

// Lenient makes the journal go on without what cannot be written, until the
// returned function is called: putting old files back is worth more than its
// record on a full disk.
func (j *Journal) Lenient(tell func(error)) (strict func()) {
	j.mu.Lock()
	defer j.mu.Unlock()
	before := j.lenient
	j.lenient = tell
	return func() {
		j.mu.Lock()
		defer j.mu.Unlock()
		j.lenient = before
	}
}

func (j *Journal) forgive(err error) error {
	if err != nil && j.lenient != nil {
		j.lenient(err)
		return nil
	}
	return err
}

// Before implements hostexec.Watch. What the upgrader keeps for itself is no
// change of the host, and neither is what is done outside of a run.
func (j *Journal) Before(e hostexec.Effect) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if err := j.load(); err != nil {
		return j.forgive(err)
	}
	if !j.concerns(e) {
		return nil
	}
	seq, err := j.append(Entry{Event: EventIntent, Op: e.Op, Object: e.Object})
	if err == nil {
		if j.intents == nil {
			j.intents = map[hostexec.Effect]int{}
		}
		j.intents[e] = seq
	}
	return j.forgive(err)
}

// After implements hostexec.Watch.
func (j *Journal) After(e hostexec.Effect, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	seq, ok := j.intents[e]
	if !ok {
		return
	}
	delete(j.intents, e)
	end := Entry{Event: EventDone, Of: seq}
	if err != nil {
		end.Event, end.Reason = EventFailed, err.Error()
	}
	// The change is made, whether it is recorded or not: what the intent
	// announced is looked up on the disk.
	_, _ = j.append(end)
}

func (j *Journal) concerns(e hostexec.Effect) bool {
	state := StateDir
	if real, err := j.fs.Resolve(StateDir); err == nil { // it may be a link
		state = j.fs.HostPath(real)
	}
	return j.history.Open && e.Object != state && !strings.HasPrefix(e.Object, state+"/")
}

// append writes one line, and before it the line that opens the run. No context
// ends it half-way.
//
//nolint:contextcheck // see above
func (j *Journal) append(e Entry) (int, error) {
	if err := j.load(); err != nil {
		return 0, err
	}
	// What undoes a run goes on with what it has kept.
	if !j.history.Open && e.Event != EventOpen && (e.Event != EventUndo || j.history.Seq == 0) {
		if _, err := j.append(Entry{Event: EventOpen, Schema: journalSchema, Run: &j.run}); err != nil {
			return 0, err
		}
	}
	e.Seq, e.Time = j.history.Seq+1, j.now().UTC()
	if e.Step == "" {
		e.Step = j.step
	}
	line, err := json.Marshal(e)
	if err != nil {
		return 0, err
	}
	if e.Seq == 1 { // with its name, and its directory's
		err = errors.Join(j.fs.MkdirAll(parent(j.path), 0o700), j.fs.WriteFile(context.Background(), j.path, append(line, '\n'), 0o600))
	} else {
		err = j.fs.AppendLine(j.path, line)
	}
	if err != nil {
		j.history = nil // the line may be there in part
		return 0, fmt.Errorf("journal: %w", err)
	}
	j.history.add(e)
	switch e.Event {
	case EventStep, EventUndo:
		j.step = e.Step
	case EventResult, EventUndone, EventClose:
		j.step = ""
	case EventOpen, EventKeep, EventIntent, EventDone, EventFailed, EventSwap:
	}
	return e.Seq, nil
}

// load reads the journal at its first use, and removes a torn last line: the
// change that it was to announce was not made. No context ends it half-way.
//
//nolint:contextcheck // see above
func (j *Journal) load() error {
	if j.history != nil {
		return nil
	}
	history, whole, torn, err := readJournal(j.fs, j.path)
	if err != nil {
		return err
	}
	if torn {
		if err := j.fs.WriteFile(context.Background(), j.path, whole, 0o600); err != nil {
			return fmt.Errorf("repair the journal: %w", err)
		}
	}
	j.history = &history
	return nil
}
