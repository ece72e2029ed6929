package steps

import (
	"maps"
	"path"
	"slices"
	"time"
)

// History is what a run's journal tells.
type History struct {
	Run Run
	Seq int // of the last entry
	// Open: begun, and neither ended nor abandoned. Started and Ended are of the
	// last time that the run was opened and of the last entry.
	Open           bool
	Started, Ended time.Time
	// Closed is how the run ended last, "" when it never did.
	Closed string
	// Step is the step that began last.
	Step string
	// Results are the last ones of each step, in the order of their ends.
	Results []Result
	// Kept are the originals, newest last, one for each path: those of steps
	// that were undone are gone from here.
	Kept []StepKept
	// Touched is Kept with those of the steps that were undone.
	Touched []StepKept
	// Pending are the changes that were announced and whose end is not known.
	Pending []Entry
	// Changed are the steps that have changed the host and were not undone, in
	// the order of their first change. Unfinished are those of them that have
	// done so since they were done last.
	Changed, Unfinished []string
	// Undoing is the step whose rollback has begun and is not complete, and
	// UndoReason the failure that it follows, "" when it was asked for.
	Undoing, UndoReason string

	swaps map[string]swapRecord // by unit
}

// How a run may end.
const (
	ClosedDone       = "done"
	ClosedFailed     = "failed, the step rolled back" // the same run may be resumed
	ClosedRolledBack = "rolled back"
	ClosedInPart     = "rolled back in part" // the same run may be resumed
	ClosedAbandoned  = "abandoned"
)

// StepKept is a kept original and the step that keeps it.
type StepKept struct {
	Step string `json:"step"`
	Kept
}

func parent(p string) string { return path.Dir(p) }

// add takes the next entry in.
func (h *History) add(e Entry) {
	h.Seq, h.Ended = e.Seq, e.Time
	switch e.Event {
	case EventOpen:
		if e.Run != nil {
			h.Run = *e.Run
		}
		if h.Closed != ClosedFailed && h.Closed != ClosedInPart {
			// What an earlier use of the same run has kept was of its time.
			*h = History{Run: h.Run, Seq: h.Seq, Ended: e.Time, Closed: h.Closed, swaps: h.swaps}
		}
		h.Open, h.Started = true, e.Time
	case EventStep:
		h.Step = e.Step
	case EventUndo:
		h.Open, h.Step, h.Undoing, h.UndoReason = true, e.Step, e.Step, e.Reason
	case EventKeep:
		h.Kept = slices.DeleteFunc(slices.Clone(h.Kept), func(k StepKept) bool { return k.Path == e.Kept.Path })
		h.Kept = append(h.Kept, StepKept{e.Step, *e.Kept})
		if !slices.ContainsFunc(h.Touched, func(k StepKept) bool { return k.Path == e.Kept.Path }) {
			h.Touched = append(slices.Clip(h.Touched), StepKept{e.Step, *e.Kept})
		}
	case EventIntent:
		h.Pending = append(h.Pending, e)
		if e.Step != "" && h.Undoing == "" {
			h.Changed, h.Unfinished = including(h.Changed, e.Step), including(h.Unfinished, e.Step)
		}
	case EventDone, EventFailed:
		h.Pending = slices.DeleteFunc(slices.Clone(h.Pending), func(p Entry) bool { return p.Seq == e.Of })
	case EventSwap:
		h.swaps = maps.Clone(h.swaps)
		if h.swaps == nil {
			h.swaps = map[string]swapRecord{}
		}
		h.swaps[e.Object] = *e.Swap
	case EventResult:
		h.result(*e.Result)
	case EventUndone:
		h.Kept = slices.DeleteFunc(slices.Clone(h.Kept), func(k StepKept) bool { return k.Step == e.Step })
		h.Changed, h.Unfinished = without(h.Changed, e.Step), without(h.Unfinished, e.Step)
		h.Undoing, h.UndoReason = "", ""
		h.Pending = slices.DeleteFunc(slices.Clone(h.Pending), func(p Entry) bool { return p.Step == e.Step })
	case EventClose:
		h.Open, h.Closed = false, e.Reason
	}
}

// result takes a step's result in. That it was found unchanged does not replace
// how it was done, but it does replace a failure.
func (h *History) result(r Result) {
	i := slices.IndexFunc(h.Results, func(old Result) bool { return old.Step == r.Step })
	if i >= 0 {
		if old := h.Results[i].Result; r.Result == "unchanged" && (old == "done" || old == "unchanged") {
			h.Unfinished = without(h.Unfinished, r.Step)
			return
		}
		h.Results = slices.Delete(slices.Clone(h.Results), i, i+1)
	}
	h.Results = append(h.Results, r)
	if r.Result == "done" || r.Result == "unchanged" {
		h.Unfinished = without(h.Unfinished, r.Step)
		// What a crash has cut short there was done again since.
		h.Pending = slices.DeleteFunc(slices.Clone(h.Pending), func(p Entry) bool { return p.Step == r.Step })
	}
}

func including(names []string, name string) []string {
	if slices.Contains(names, name) {
		return names
	}
	return append(slices.Clone(names), name)
}

func without(names []string, name string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(n string) bool { return n == name })
}

// Begun tells whether the run has come further than to stage its bundle.
func (h History) Begun() bool {
	return h.Open && (len(without(h.Changed, stepCopy)) > 0 || len(h.Kept) > 0)
}

// kept is the original that this run keeps of a path.
func (h History) kept(p string) (StepKept, bool) {
	i := slices.IndexFunc(h.Kept, func(k StepKept) bool { return k.Path == p })
	if i < 0 {
		return StepKept{}, false
	}
	return h.Kept[i], true
}

// swapOpen tells whether a swap has begun and has not come to its end.
func (h History) swapOpen() bool {
	for _, s := range h.swaps {
		if s.Open {
			return true
		}
	}
	return false
}

// keeps tells whether the run has an original of the path.
func (r Record) keeps(p string) bool {
	history, err := r.Journal().History()
	_, there := history.kept(p)
	return err == nil && there
}

// keptBy are the originals that a step keeps, newest first.
func (h History) keptBy(step string) []StepKept {
	var kept []StepKept
	for _, k := range slices.Backward(h.Kept) {
		if k.Step == step {
			kept = append(kept, k)
		}
	}
	return kept
}
