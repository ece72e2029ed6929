package steps

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"
)

// shortClock is a clock on which sleep passes at once, and ends after ten
// minutes of it.
func shortClock() Clock {
	var mu sync.Mutex
	now := time.Unix(1e9, 0)
	end := now.Add(10 * time.Minute)
	return Clock{
		Now: func() time.Time { mu.Lock(); defer mu.Unlock(); return now },
		Sleep: func(ctx context.Context, d time.Duration) error {
			mu.Lock()
			defer mu.Unlock()
			if now = now.Add(d); now.After(end) {
				end = now.Add(10 * time.Minute)
				return errors.New("ten minutes went by")
			}
			return ctx.Err()
		},
	}
}

// logLines keeps what was logged.
type logLines struct {
	mu    sync.Mutex
	lines strings.Builder
}

func (l *logLines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lines.Write(p)
}
func (l *logLines) String() string { l.mu.Lock(); defer l.mu.Unlock(); return l.lines.String() }
