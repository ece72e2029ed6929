package main

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// logSome is what a step logs.
func logSome(l *slog.Logger) {
	undo := l.With("step", "kubelet")
	l = l.With("step", "kubeadm", "n", 4, "of", 7)
	l.Info("install kubeadm and upgrade by it what it manages", "event", "start")
	l.Info("found", "what", "cluster", "have", "v1.35.4", "want", "v1.36.3")
	l.Info("found", "what", "CRI", "have", "ready", "want", "ready")
	l.Info("installed", "file", "/usr/bin/kubeadm", "sha256", "abc")
	l.Info("[upgrade] SUCCESS!", "from", "kubeadm")
	l.Warn("slow disk", "reason", "two words")
	l.Debug("progress", "done", 1, "total", 2)
	l.Info("done", "event", "end", "seconds", 169.2)
	l.Error("kubeadm: too bad", "event", eventOutcome, "exit", 1)
	undo.Info("rolling back")
}

const wantText = `TIME step 4 of 7 kubeadm: install kubeadm and upgrade by it what it manages
TIME          cluster: v1.35.4 -> v1.36.3
TIME          CRI: ready
TIME          installed file=/usr/bin/kubeadm sha256=abc
TIME            | [upgrade] SUCCESS!
TIME          WARNING slow disk reason="two words"
TIME          kubeadm: done after 169.2 s
TIME          kubelet: rolling back
`

var clock = regexp.MustCompile(`(?m)^\d\d:\d\d:\d\d`)

func TestTextIsForPeople(t *testing.T) {
	var out bytes.Buffer
	l := newLogger(&out, "text")
	logSome(slog.New(l))
	l.close()
	if diff := cmp.Diff(wantText, clock.ReplaceAllString(out.String(), "TIME")); diff != "" {
		t.Error(diff)
	}
}

// What the unit wrote as JSON reads the same when its caller shows it, and goes
// through unchanged with -o json.
func TestReplay(t *testing.T) {
	var lines bytes.Buffer
	logSome(slog.New(newLogger(&lines, "json")))
	var text, again bytes.Buffer
	people, programs := newLogger(&text, "text"), newLogger(&again, "json")
	for line := range strings.Lines(lines.String()) {
		var event struct {
			Schema int
			Msg    string
		}
		if err := json.Unmarshal([]byte(line), &event); err != nil || event.Schema != eventSchema || event.Msg == "" {
			t.Errorf("%v in %s", err, line)
		}
		people.replay([]byte(strings.TrimSuffix(line, "\n")))
		programs.replay([]byte(strings.TrimSuffix(line, "\n")))
	}
	people.replay([]byte("panic: not JSON"))
	if diff := cmp.Diff(wantText+"panic: not JSON\n", clock.ReplaceAllString(text.String(), "TIME")); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(lines.String(), again.String()); diff != "" {
		t.Error(diff)
	}
}

func TestBarAndSpinner(t *testing.T) {
	var out bytes.Buffer
	s := &screen{w: &out, terminal: true, stop: make(chan struct{})}
	log := slog.New(&logger{screen: s}).With("step", "copy", "n", 1, "of", 7)
	log.Info("stage", "event", "start")
	log.Debug("progress", "done", int64(150<<20), "total", int64(300<<20))
	s.draw()
	if want := "copy [" + strings.Repeat("█", 15) + strings.Repeat("·", 15) + "] 150 of 300 MiB"; !strings.Contains(out.String(), want) {
		t.Errorf("no %q in %q", want, out.String())
	}
	log.Info("done", "event", "end", "seconds", 1.0)
	out.Reset()
	s.draw()
	if out.Len() != 0 {
		t.Errorf("a spinner after the step's end: %q", out.String())
	}
}

// Outside of a plan's steps the bar has its own name, and the next one another.
func TestBarOfItsOwn(t *testing.T) {
	var out bytes.Buffer
	s := &screen{w: &out, terminal: true, stop: make(chan struct{})}
	log := slog.New(&logger{screen: s})
	for _, name := range []string{"download", "bundle"} {
		out.Reset()
		progress(log, name)(100<<20, 200<<20)
		s.draw()
		if want := name + " [" + strings.Repeat("█", 15) + strings.Repeat("·", 15) + "] 100 of 200 MiB 0 s"; !strings.Contains(out.String(), want) {
			t.Errorf("no %q in %q", want, out.String())
		}
	}
	log.Warn("cut, trying again")
	if !strings.Contains(out.String(), "WARNING cut, trying again\n") {
		t.Errorf("got %q", out.String())
	}
}
