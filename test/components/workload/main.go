// Command workload is a workload whose loss would show.
//
// Each second it appends a line "COUNTER TIME START" to /data/counter and syncs
// it; COUNTER goes on from the file's last line, so a gap, a repetition or a
// fresh start can be seen in the file. On $PORT (8080) it answers every request
// with {"counter":12,"started":"2026-01-02T15:04:05.000000006Z"}: a start time
// that changed is a restarted container. SIGTERM ends it at once, with 0.
//
// It needs the standard library only.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	port := os.Getenv("PORT")
	if port == "" {
		port = "8080"
	}
	if err := run(ctx, "/data/counter", ":"+port); err != nil {
		fmt.Fprintln(os.Stderr, "workload:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, path, address string) error {
	started := time.Now().UTC()
	last, err := resume(path)
	if err != nil {
		return err
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()

	var counter atomic.Int64
	counter.Store(last)
	answer := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(struct {
			Counter int64     `json:"counter"`
			Started time.Time `json:"started"`
		}{counter.Load(), started})
	}
	ended := make(chan error, 1)
	server := &http.Server{Addr: address, Handler: http.HandlerFunc(answer), ReadHeaderTimeout: 5 * time.Second}
	go func() { ended <- server.ListenAndServe() }()
	defer func() { _ = server.Close() }()

	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		line := fmt.Sprintf("%d %s %s\n", counter.Load()+1, time.Now().UTC().Format(time.RFC3339Nano), started.Format(time.RFC3339Nano))
		if _, err := file.WriteString(line); err != nil {
			return err
		}
		if err := file.Sync(); err != nil {
			return err
		}
		counter.Add(1)
		select {
		case <-ctx.Done():
			return nil
		case err := <-ended:
			return err
		case <-tick.C:
		}
	}
}

// resume returns the counter of the file's last whole line, 0 without one, and
// cuts off what a power cut left half written.
func resume(path string) (int64, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	whole := bytes.LastIndexByte(data, '\n') + 1
	if whole < len(data) {
		if err := os.Truncate(path, int64(whole)); err != nil {
			return 0, err
		}
	}
	lines := bytes.Split(bytes.TrimRight(data[:whole], "\n"), []byte("\n"))
	number, _, _ := bytes.Cut(lines[len(lines)-1], []byte(" "))
	if len(number) == 0 {
		return 0, nil
	}
	counter, err := strconv.ParseInt(string(number), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: last line: %w", path, err)
	}
	return counter, nil
}
