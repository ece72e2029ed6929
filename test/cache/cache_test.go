package cache

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

func TestRoot(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", "/somewhere")
	if got, want := Root(), "/somewhere/node-upgrader"; got != want {
		t.Errorf("Root() = %q, want %q", got, want)
	}
	t.Setenv("XDG_CACHE_HOME", "")
	t.Setenv("HOME", "/home/me")
	if got, want := Root(), "/home/me/.cache/node-upgrader"; got != want {
		t.Errorf("Root() = %q, want %q", got, want)
	}
	t.Setenv("HOME", "")
	if _, err := Dir("thing", "key", nil); err == nil {
		t.Error("Dir without a home: no error")
	}
}

func TestDirBuildsOnceForEachKey(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	builds := 0
	build := func(tmp string) error {
		builds++
		return os.WriteFile(filepath.Join(tmp, "file"), []byte("x"), 0o644)
	}
	first, err := Dir("thing", "a", build)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Dir("thing", "a", build)
	if err != nil {
		t.Fatal(err)
	}
	other, err := Dir("thing", "b", build)
	if err != nil {
		t.Fatal(err)
	}
	if first != again || first == other || builds != 2 {
		t.Errorf("paths %s, %s, %s after %d builds", first, again, other, builds)
	}
	if first != Path("thing", "a") || !strings.HasPrefix(first, Root()) {
		t.Errorf("Dir returned %s, Path %s", first, Path("thing", "a"))
	}
	if _, err := os.Stat(filepath.Join(first, "file")); err != nil {
		t.Error(err)
	}
}

func TestDirRefusesKindsThatAreNoFileName(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	for _, kind := range []string{"", ".", "..", "a/b", "/a", ".hidden"} {
		if _, err := Dir(kind, "key", func(string) error { return nil }); err == nil {
			t.Errorf("kind %q: no error", kind)
		}
	}
}

func TestFailedBuildLeavesNothing(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	broken := errors.New("broken")
	_, err := Dir("thing", "a", func(tmp string) error {
		if err := os.WriteFile(filepath.Join(tmp, "half"), nil, 0o644); err != nil {
			t.Error(err)
		}
		return broken
	})
	if !errors.Is(err, broken) {
		t.Errorf("error %v, want %v", err, broken)
	}
	assertEntries(t, 0)
	if _, err := Dir("thing", "a", func(string) error { return nil }); err != nil {
		t.Errorf("after a failed build: %v", err)
	}
	assertEntries(t, 1)
}

func TestConcurrentBuildersBuildOnce(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	var builds atomic.Int32
	var group sync.WaitGroup
	started := make(chan struct{})
	said := &syncBuffer{}
	for range 8 {
		group.Go(func() {
			path, err := dir(t.Context(), said, "thing", "a", func(tmp string) error {
				builds.Add(1)
				close(started)
				time.Sleep(150 * time.Millisecond)
				return os.WriteFile(filepath.Join(tmp, "file"), nil, 0o644)
			})
			if err != nil {
				t.Error(err)
			} else if _, err := os.Stat(filepath.Join(path, "file")); err != nil {
				t.Error(err)
			}
		})
	}
	<-started
	group.Wait()
	if builds.Load() != 1 {
		t.Errorf("built %d times", builds.Load())
	}
	if !strings.Contains(said.String(), "waiting for another process") {
		t.Errorf("a waiting builder said %q", said)
	}
	assertEntries(t, 1)
}

func TestWaitEndsWithTheContext(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	_, err := Dir("thing", "a", func(string) error {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, err := dir(ctx, io.Discard, "thing", "a", func(string) error { return nil })
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v, want the deadline's", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestKilledBuildIsCleaned runs itself as another process, kills that in the
// middle of its build, and builds again.
func TestKilledBuildIsCleaned(t *testing.T) {
	if os.Getenv("CACHE_TEST_HANG") != "" {
		_, _ = Dir("thing", "a", func(tmp string) error {
			_ = os.WriteFile(filepath.Join(tmp, "half"), nil, 0o644)
			_, _ = os.Stdout.WriteString("building\n")
			select {}
		})
		return
	}
	root := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", root)
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestKilledBuildIsCleaned$")
	cmd.Env = append(os.Environ(), "CACHE_TEST_HANG=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, len("building\n"))); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := dir(ctx, io.Discard, "thing", "a", nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("while the other process builds: error %v, want the deadline's", err)
	}
	if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	left, _ := filepath.Glob(filepath.Join(Root(), "thing", ".*.tmp-*", "half"))
	if len(left) != 1 {
		t.Errorf("the killed build left %v, want a half-built directory", left)
	}

	path, err := Dir("thing", "a", func(tmp string) error {
		if entries, err := os.ReadDir(tmp); err != nil || len(entries) != 0 {
			t.Errorf("build got %v, %v, want an empty directory", entries, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(path); err != nil || len(entries) != 0 {
		t.Errorf("result has %v, %v", entries, err)
	}
	assertEntries(t, 1)
}

// assertEntries checks that the kind "thing" holds n directories and no
// temporary one.
func assertEntries(t *testing.T, n int) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(Root(), "thing"))
	if err != nil {
		t.Fatal(err)
	}
	got := 0
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".lock") {
			continue
		}
		got++
		if strings.HasPrefix(e.Name(), ".") {
			t.Errorf("left over: %s", e.Name())
		}
	}
	if got != n {
		t.Errorf("%d directories, want %d", got, n)
	}
}

type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
