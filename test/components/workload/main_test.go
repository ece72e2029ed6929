package main

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestResume(t *testing.T) {
	tests := map[string]struct {
		file      string
		counter   int64
		remaining string
	}{
		"empty":                    {"", 0, ""},
		"whole lines":              {"1 a b\n2 a b\n", 2, "1 a b\n2 a b\n"},
		"a half line after others": {"1 a b\n2 a b\n3 a", 2, "1 a b\n2 a b\n"},
		"only a half line":         {"1", 0, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "counter")
			if err := os.WriteFile(path, []byte(test.file), 0o644); err != nil {
				t.Fatal(err)
			}
			counter, err := resume(path)
			if err != nil || counter != test.counter {
				t.Errorf("counter %d, %v, want %d", counter, err, test.counter)
			}
			data, err := os.ReadFile(path)
			if err != nil || string(data) != test.remaining {
				t.Errorf("file %q, %v, want %q", data, err, test.remaining)
			}
		})
	}
	if counter, err := resume(filepath.Join(t.TempDir(), "absent")); counter != 0 || err != nil {
		t.Errorf("without a file: %d, %v", counter, err)
	}
	path := filepath.Join(t.TempDir(), "counter")
	if err := os.WriteFile(path, []byte("rubbish\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := resume(path); err == nil {
		t.Error("a line without a counter: no error")
	}
}

func TestRun(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "counter")
	if err := os.WriteFile(path, []byte("41 a b\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, path, address) }()

	var answer struct {
		Counter int64
		Started time.Time
	}
	for deadline := time.Now().Add(5 * time.Second); answer.Counter == 0; {
		if time.Now().After(deadline) {
			t.Fatal("no answer in 5 s")
		}
		response, err := http.Get("http://" + address)
		if err != nil {
			time.Sleep(10 * time.Millisecond)
			continue
		}
		if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if answer.Counter < 41 || time.Since(answer.Started) > time.Minute {
		t.Errorf("answer %+v", answer)
	}
	data, err := os.ReadFile(path)
	if err != nil || !strings.HasPrefix(string(data), "41 a b\n42 ") {
		t.Errorf("file %q, %v", data, err)
	}
}
