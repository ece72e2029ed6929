package steps

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

// journalOn is the journal of run r on a directory of the test's own.
func journalOn(t *testing.T, root string) *Journal {
	t.Helper()
	j := NewRecord(hostexec.NewFS(root), "r").Journal()
	j.Describe(Run{ID: "r", Bundle: "sha256:b", Kubernetes: "v1.36.3"}, func() time.Time { return time.Unix(100, 0) })
	return j
}

func mustHistory(t *testing.T, j *Journal) History {
	t.Helper()
	h, err := j.History()
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// What a power cut leaves of the last line is gone with the next one; it
// announced nothing that was done.
func TestJournalTorn(t *testing.T) {
	for _, tail := range []string{`{"seq":3,"ev`, "\x00\x00\x00\x00", "{\n", `{"seq":3,"event":"intent"}`} {
		root := t.TempDir()
		j := journalOn(t, root)
		must(t, j.Append(Entry{Event: EventStep, Step: "kubelet"}))
		file := filepath.Join(root, StateDir, "runs/r", journalFile)
		f, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0)
		must(t, err)
		_, err = f.WriteString(tail)
		must(t, errors.Join(err, f.Close()))

		j = journalOn(t, root)
		if h := mustHistory(t, j); h.Seq != 2 || h.Step != "kubelet" {
			t.Errorf("%q: %+v", tail, h)
		}
		if data, _ := os.ReadFile(file); !strings.HasSuffix(string(data), tail) {
			t.Errorf("%q: a reader has repaired it", tail)
		}
		must(t, j.Append(Entry{Event: EventStep, Step: "uncordon"}))
		if h := mustHistory(t, journalOn(t, root)); h.Seq != 3 || h.Step != "uncordon" || !h.Open {
			t.Errorf("%q: after the repair: %+v", tail, h)
		}
	}
}

func TestJournalRefused(t *testing.T) {
	const open = `{"seq":1,"time":"2026-01-01T00:00:00Z","event":"open","schema":1,"run":{"id":"r"}}` + "\n"
	for _, tc := range []struct{ name, journal, reason string }{
		{"a line in the middle", open + "garbage\n" + `{"seq":3,"event":"step"}` + "\n", "line 2 is no JSON object"},
		{"a line is missing", open + `{"seq":3,"event":"step"}` + "\n", "line 2 has number 3"},
		{"no beginning", `{"seq":1,"event":"step"}` + "\n", "line 1 does not open a run"},
		{"newer", strings.Replace(open, `"schema":1`, `"schema":2`, 1), "written by a newer upgrader (schema 2, this one knows 1)"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			root := t.TempDir()
			file := filepath.Join(root, StateDir, "runs/r", journalFile)
			must(t, os.MkdirAll(filepath.Dir(file), 0o700))
			must(t, os.WriteFile(file, []byte(tc.journal), 0o600))
			j := journalOn(t, root)
			_, err := j.History()
			if ExitCode(err) != ExitBlocked || !strings.Contains(err.Error(), tc.reason) || len(Hints(err)) == 0 {
				t.Errorf("exit %d: %v (%v)", ExitCode(err), err, Hints(err))
			}
			if err := j.Append(Entry{Event: EventStep, Step: "copy"}); ExitCode(err) != ExitBlocked {
				t.Errorf("written to: %v", err)
			}
			if data, _ := os.ReadFile(file); string(data) != tc.journal {
				t.Errorf("it was changed: %s", data)
			}
		})
	}
}

// An effect is on the disk as an intent while it is made, and only the host's.
func TestJournalAnnounces(t *testing.T) {
	root := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(root, "etc"), 0o755))
	record := NewRecord(hostexec.NewFS(root), "r")
	must(t, record.Journal().Append(Entry{Event: EventStep, Step: "kubelet"}))
	host := hostexec.Host{FS: hostexec.NewFS(root)}.Watched(watches{record.Journal(), watchFunc(func(e hostexec.Effect) error {
		h := mustHistory(t, NewRecord(hostexec.NewFS(root), "r").Journal()) // as another process would read it
		if ours := strings.HasPrefix(e.Object, StateDir); ours == (len(h.Pending) == 1) {
			t.Errorf("%s: pending: %v", e, h.Pending)
		}
		return nil
	})})
	must(t, host.FS.WriteFile(t.Context(), "/etc/a", []byte("x"), 0o600))
	must(t, host.FS.WriteFile(t.Context(), StateDir+"/a", []byte("x"), 0o600))
	h := mustHistory(t, record.Journal())
	if len(h.Pending) != 0 || cmp.Diff([]string{"kubelet"}, h.Changed) != "" {
		t.Errorf("%+v", h)
	}
	if host.FS.Link("/etc/a", "/none/a") == nil {
		t.Fatal("linked to nowhere")
	}
	if h := mustHistory(t, record.Journal()); len(h.Pending) != 0 {
		t.Errorf("what failed is pending: %v", h.Pending)
	}
}

// watchFunc is a Watch of what is about to be done.
type watchFunc func(hostexec.Effect) error

func (f watchFunc) Before(e hostexec.Effect) error { return f(e) }
func (watchFunc) After(hostexec.Effect, error)     {}

// A line that was torn by a full disk, and cannot be mended: nothing is changed
// without a word before it.
func TestJournalTornByAFullDisk(t *testing.T) {
	root := t.TempDir()
	full := errors.New("no space left on device")
	var broken error
	fs := hostexec.NewFS(root).Watched(watchFunc(func(hostexec.Effect) error { return broken }))
	j := NewRecord(fs, "r").Journal()
	must(t, j.Append(Entry{Event: EventStep, Step: "kubelet"}))
	f, err := os.OpenFile(filepath.Join(root, StateDir, "runs/r", journalFile), os.O_APPEND|os.O_WRONLY, 0)
	must(t, err)
	_, err = f.WriteString(`{"seq":3,"ev`)
	must(t, errors.Join(err, f.Close()))
	broken = full
	for range 2 {
		if err := j.Before(hostexec.Effect{Op: "stop", Object: "kubelet.service"}); !errors.Is(err, full) {
			t.Fatalf("a change that cannot be announced is made: %v", err)
		}
	}
}

// A full disk must not keep old files from being put back.
func TestJournalLenient(t *testing.T) {
	root := t.TempDir()
	full := errors.New("no space left on device")
	var broken error
	fs := hostexec.NewFS(root).Watched(watchFunc(func(hostexec.Effect) error { return broken }))
	j := NewRecord(fs, "r").Journal()
	must(t, j.Append(Entry{Event: EventStep, Step: "kubelet"}))
	broken = full
	if err := j.Before(hostexec.Effect{Op: "stop", Object: "kubelet.service"}); !errors.Is(err, full) {
		t.Errorf("a change that cannot be announced is made: %v", err)
	}
	var told error
	strict := j.Lenient(func(err error) { told = err })
	if err := j.Before(hostexec.Effect{Op: "start", Object: "kubelet.service"}); err != nil || !errors.Is(told, full) {
		t.Errorf("%v, told %v", err, told)
	}
	strict()
	if err := j.Append(Entry{Event: EventStep}); !errors.Is(err, full) {
		t.Errorf("still lenient: %v", err)
	}
}

// The history of a run from its lines.
func TestHistory(t *testing.T) {
	keep := func(path string) Entry {
		return Entry{Event: EventKeep, Step: "kubelet", Kept: &Kept{Path: path, Before: "1", After: "2"}}
	}
	result := func(r string) Entry {
		return Entry{Event: EventResult, Result: &Result{Step: "kubelet", Result: r}}
	}
	run := func(es ...Entry) History {
		var h History
		for i, e := range append([]Entry{{Event: EventOpen, Run: &Run{ID: "r"}}}, es...) {
			e.Seq = i + 1
			h.add(e)
		}
		return h
	}
	change := Entry{Event: EventIntent, Step: "kubelet"}
	for _, tc := range []struct {
		name       string
		h          History
		begun      bool
		kept       int
		unfinished string
	}{
		{"just open", run(), false, 0, ""},
		{"staged only", run(Entry{Event: EventStep, Step: "copy"}, Entry{Event: EventIntent, Step: "copy"}), false, 0, "copy"},
		{"changed", run(keep("/a"), change), true, 1, "kubelet"},
		{"kept twice", run(keep("/a"), keep("/a"), keep("/b")), true, 2, ""},
		{"done", run(keep("/a"), change, result("done")), true, 1, ""},
		{"failed", run(keep("/a"), change, result("failed")), true, 1, "kubelet"},
		{"undone", run(keep("/a"), change, Entry{Event: EventUndone, Step: "kubelet"}), false, 0, ""},
		{"ended", run(keep("/a"), change, result("done"), Entry{Event: EventClose, Reason: ClosedDone}), false, 1, ""},
		{"used again after its end", run(keep("/a"), change, Entry{Event: EventClose, Reason: ClosedDone}, Entry{Event: EventOpen}), false, 0, ""},
		{"resumed after a failure", run(keep("/a"), change, result("done"), Entry{Event: EventClose, Reason: ClosedFailed}, Entry{Event: EventOpen}), true, 1, ""},
		{"rollback of an ended run", run(keep("/a"), change, result("done"), Entry{Event: EventClose, Reason: ClosedDone}, Entry{Event: EventUndo, Step: "kubelet"}), true, 1, ""},
	} {
		if tc.h.Begun() != tc.begun || len(tc.h.Kept) != tc.kept || strings.Join(tc.h.Unfinished, " ") != tc.unfinished {
			t.Errorf("%s: begun %v, kept %v, unfinished %v", tc.name, tc.h.Begun(), tc.h.Kept, tc.h.Unfinished)
		}
	}
}
