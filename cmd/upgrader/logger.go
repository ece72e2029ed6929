package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"
)

// eventSchema is the version of a line of `-o json`.
const eventSchema = 1

// eventOutcome is how the unit's process failed. It is for the log: whoever
// follows the unit shows the outcome itself.
const eventOutcome = "outcome"

// logger shows what happens, on stderr: lines that a person can follow, with a
// spinner or a bar on a terminal, or one JSON object a line. It is a
// slog.Handler; its clones share one screen.
type logger struct {
	screen *screen
	attrs  []slog.Attr
}

type screen struct {
	mu       sync.Mutex
	w        io.Writer
	json     slog.Handler // set with -o json
	terminal bool
	status   string // the line that the spinner stands in; "" between steps
	since    time.Time
	frame    int
	stop     chan struct{}
	stopped  sync.WaitGroup
}

func newLogger(w io.Writer, output string) *logger {
	s := &screen{w: w, stop: make(chan struct{})}
	if output == "json" {
		// Debug is for progress, which is for people.
		s.json = slog.NewJSONHandler(w, &slog.HandlerOptions{Level: slog.LevelInfo}).
			WithAttrs([]slog.Attr{slog.Int("schema", eventSchema)})
		return &logger{screen: s}
	}
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		s.terminal = true
		s.stopped.Go(s.spin)
	}
	return &logger{screen: s}
}

// close takes the spinner away; it may be called twice.
func (l *logger) close() {
	s := l.screen
	s.mu.Lock()
	select {
	case <-s.stop:
	default:
		close(s.stop)
	}
	s.mu.Unlock()
	s.stopped.Wait()
}

// Enabled implements slog.Handler.
func (l *logger) Enabled(_ context.Context, level slog.Level) bool {
	return level >= slog.LevelInfo || l.screen.terminal
}

// WithAttrs implements slog.Handler.
func (l *logger) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &logger{screen: l.screen, attrs: append(slices.Clip(l.attrs), attrs...)}
}

// WithGroup implements slog.Handler; the upgrader groups nothing.
func (l *logger) WithGroup(string) slog.Handler { return l }

// Handle implements slog.Handler.
func (l *logger) Handle(ctx context.Context, r slog.Record) error {
	if h := l.screen.json; h != nil {
		return h.WithAttrs(l.attrs).Handle(ctx, r)
	}
	values := map[string]slog.Value{}
	var shown []slog.Attr
	add := func(a slog.Attr) bool {
		switch a.Key {
		case "step", "n", "of", "event", "from", "done", "total", "seconds", "what", "have", "want", "schema":
			values[a.Key] = a.Value
		default:
			shown = append(shown, a)
		}
		return true
	}
	for _, a := range l.attrs {
		add(a)
	}
	r.Attrs(add)
	return l.screen.show(r, values, shown)
}

// replay shows a line that another process of ours logged with -o json.
func (l *logger) replay(line []byte) {
	if l.screen.json != nil {
		l.screen.mu.Lock()
		defer l.screen.mu.Unlock()
		fmt.Fprintf(l.screen.w, "%s\n", line)
		return
	}
	var m map[string]any
	if err := json.Unmarshal(line, &m); err != nil { // a crash's stack trace, say
		fmt.Fprintf(l.screen.w, "%s\n", line)
		return
	}
	at, _ := time.Parse(time.RFC3339Nano, fmt.Sprint(m["time"]))
	var level slog.Level
	_ = level.UnmarshalText([]byte(fmt.Sprint(m["level"])))
	record := slog.NewRecord(at, level, fmt.Sprint(m["msg"]), 0)
	for _, key := range keys(line) {
		switch key {
		case "time", "level", "msg":
		default:
			record.AddAttrs(slog.Any(key, m[key]))
		}
	}
	_ = l.Handle(context.Background(), record)
}

// keys are an object's keys in their order.
func keys(object []byte) []string {
	var list []string
	d := json.NewDecoder(bytes.NewReader(object))
	depth, isKey := 0, true
	for {
		t, err := d.Token()
		if err != nil {
			return list
		}
		switch v := t.(type) {
		case json.Delim:
			if v == '{' || v == '[' {
				depth++
				continue
			}
			depth--
			isKey = depth == 1
		case string:
			if depth == 1 && isKey {
				list = append(list, v)
				isKey = false
				continue
			}
			isKey = depth == 1
		default:
			isKey = depth == 1
		}
	}
}

func (s *screen) show(r slog.Record, v map[string]slog.Value, shown []slog.Attr) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Message == "progress" {
		s.progress(r, v)
		return nil
	}
	if r.Level < slog.LevelInfo || v["event"].String() == eventOutcome {
		return nil
	}
	s.clear()
	line := r.Time.Local().Format("15:04:05") + " "
	step := v["step"].String()
	switch v["event"].String() {
	case "start":
		line += fmt.Sprintf("step %v of %v %s: %s", v["n"], v["of"], step, r.Message)
		s.status, s.since = step, r.Time
	case "end":
		line += fmt.Sprintf("         %s: %s after %.1f s", step, r.Message, float(v["seconds"]))
		s.status = ""
	default:
		line += s.detail(r, v)
	}
	for _, a := range shown {
		line += fmt.Sprintf(" %s=%s", a.Key, quoted(a.Value.String()))
	}
	_, err := fmt.Fprintln(s.w, line)
	return err
}

// detail is a line inside a step, or outside of any.
func (s *screen) detail(r slog.Record, v map[string]slog.Value) string {
	indent, of := "", ""
	if step, ok := v["step"]; ok {
		indent = "         "
		if _, begun := v["n"]; !begun { // no line above says which step it is
			of = step.String() + ": "
		}
	}
	switch {
	case r.Level >= slog.LevelError:
		indent += "ERROR "
	case r.Level >= slog.LevelWarn:
		indent += "WARNING "
	}
	if _, ok := v["from"]; ok {
		return indent + "  | " + r.Message
	}
	if what, ok := v["what"]; ok {
		have, want := v["have"].String(), v["want"].String()
		switch {
		case have == want, want == "":
			return indent + fmt.Sprintf("%s: %s", what, have)
		default:
			return indent + fmt.Sprintf("%s: %s -> %s", what, have, want)
		}
	}
	return indent + of + r.Message
}

func float(v slog.Value) float64 {
	f, _ := v.Any().(float64)
	return f
}

func quoted(s string) string {
	if s == "" || strings.ContainsAny(s, " \"\n") {
		return fmt.Sprintf("%q", s)
	}
	return s
}
