package main

import (
	"fmt"
	"log/slog"
	"strings"
	"time"
)

// spin redraws the status line of a terminal until close.
func (s *screen) spin() {
	tick := time.NewTicker(120 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-s.stop:
			s.mu.Lock()
			s.clear()
			s.mu.Unlock()
			return
		case <-tick.C:
			s.mu.Lock()
			s.draw()
			s.mu.Unlock()
		}
	}
}

func (s *screen) draw() {
	if s.status == "" {
		return
	}
	frames := []string{"⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"}
	s.frame = (s.frame + 1) % len(frames)
	fmt.Fprintf(s.w, "\r\x1b[K%s %s %d s", frames[s.frame], s.status, int(time.Since(s.since).Seconds()))
}

func (s *screen) clear() {
	if s.terminal {
		fmt.Fprint(s.w, "\r\x1b[K")
	}
}

// progress puts a bar into the status line, also outside of a plan's steps.
func (s *screen) progress(r slog.Record, v map[string]slog.Value) {
	total := v["total"].Int64()
	if !s.terminal || total <= 0 {
		return
	}
	const width = 30
	done := v["done"].Int64()
	full := int(width * done / total)
	name, _, _ := strings.Cut(s.status, " ")
	if _, planned := v["n"]; !planned && name != v["step"].String() {
		name, s.since = v["step"].String(), r.Time
	}
	s.status = fmt.Sprintf("%s [%s%s] %d of %d MiB", name, strings.Repeat("█", full), strings.Repeat("·", width-full), done>>20, total>>20)
}
