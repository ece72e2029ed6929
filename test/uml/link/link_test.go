package link

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// ends are a client and its server in this process.
func ends(t *testing.T) *Client {
	t.Helper()
	near, far := net.Pipe()
	c := Connect(near)
	served := make(chan error, 1)
	go func() { served <- Serve(far) }()
	t.Cleanup(func() {
		near.Close()
		if err := <-served; !errors.Is(err, io.EOF) {
			t.Errorf("the server ended with %v", err)
		}
	})
	if err := c.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestExec(t *testing.T) {
	c := ends(t)
	var out, errs bytes.Buffer
	code, err := c.Run(t.Context(), Request{Op: OpExec, Args: []string{"sh", "-c", "cat; echo $A >&2; pwd; exit 7"}, Env: []string{"A=b"}, Dir: "/"},
		strings.NewReader("in"), &out, &errs)
	if code != 7 || err != nil || out.String() != "in/\n" || errs.String() != "b\n" {
		t.Errorf("code %d, error %v, out %q, err %q", code, err, out.String(), errs.String())
	}
	if code, err := c.Run(t.Context(), Request{Op: OpExec, Args: []string{"sh", "-c", "kill -9 $$"}}, nil, nil, nil); code != 137 || err != nil {
		t.Errorf("killed by a signal: %d, %v", code, err)
	}
	if _, err := c.Run(t.Context(), Request{Op: OpExec, Args: []string{"/no/such"}}, nil, nil, nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no such program: %v", err)
	}
}

// Much data in both directions, of many commands at once, comes back whole.
func TestManyAtOnce(t *testing.T) {
	c := ends(t)
	text := bytes.Repeat([]byte("0123456789abcdef\n"), 20000)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			var out bytes.Buffer
			if code, err := c.Run(t.Context(), Request{Op: OpExec, Args: []string{"cat"}}, bytes.NewReader(text), &out, nil); code != 0 || err != nil || !bytes.Equal(out.Bytes(), text) {
				t.Errorf("code %d, error %v, %d of %d bytes", code, err, out.Len(), len(text))
			}
		})
	}
	all.Wait()
}

// A program whose output nobody takes stops alone, and ends with its context,
// with all of its process group.
func TestGivingUp(t *testing.T) {
	c := ends(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	never, w := io.Pipe()
	defer never.Close()
	mark := filepath.Join(t.TempDir(), "mark")
	go func() {
		_, err := c.Run(ctx, Request{Op: OpExec, Args: []string{"sh", "-c", "(sleep 1; touch " + mark + ") & yes"}}, nil, w, nil)
		ended <- err
	}()
	if code, err := c.Run(t.Context(), Request{Op: OpExec, Args: []string{"true"}}, nil, nil, nil); code != 0 || err != nil {
		t.Errorf("beside it: %d, %v", code, err)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	time.Sleep(1500 * time.Millisecond)
	if _, err := os.Stat(mark); err == nil {
		t.Error("a child outlived its context")
	}
}

func TestReadAndCopy(t *testing.T) {
	c := ends(t)
	src, dst := t.TempDir(), filepath.Join(t.TempDir(), "a", "b")
	if err := errors.Join(os.Mkdir(filepath.Join(src, "d"), 0o755), os.WriteFile(filepath.Join(src, "d/f"), []byte("text"), 0o751), os.Symlink("f", filepath.Join(src, "d/l"))); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Run(t.Context(), Request{Op: OpCopy, Source: src, Path: dst}, nil, nil, nil); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(filepath.Join(dst, "d/f")); err != nil || info.Mode() != 0o751 {
		t.Errorf("%v, %v", info, err)
	}
	var out bytes.Buffer
	if _, err := c.Run(t.Context(), Request{Op: OpRead, Path: filepath.Join(dst, "d/l")}, nil, &out, nil); err != nil || out.String() != "text" {
		t.Errorf("%q, %v", out.String(), err)
	}
	if _, err := c.Run(t.Context(), Request{Op: OpRead, Path: dst + "/none"}, nil, nil, nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no such file: %v", err)
	}
}

// A guest that dies ends what waits for it.
func TestLineIsCut(t *testing.T) {
	near, far := net.Pipe()
	c := Connect(near)
	go func() { _ = Serve(far) }()
	if err := c.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() {
		_, err := c.Run(t.Context(), Request{Op: OpExec, Args: []string{"sleep", "60"}}, nil, nil, nil)
		ended <- err
	}()
	far.Close()
	if err := <-ended; !errors.Is(err, ErrLost) {
		t.Errorf("error %v", err)
	}
}
