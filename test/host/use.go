package host

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Exec implements Machine.
func (h *Host) Exec(ctx context.Context, c Cmd) (Result, error) {
	pid1 := h.init()
	h.ground.mu.Lock()
	cgroups := h.record.Cgroups
	h.ground.mu.Unlock()
	target, err := pid1.open()
	if err != nil {
		return Result{Code: -1}, fmt.Errorf("%s: %s: %w", h.Name(), strings.Join(c.Args, " "), err)
	}
	defer target.Close()
	var stdout, stderr bytes.Buffer
	code, err := enter(ctx, target, cgroups, c, &stdout, &stderr)
	res := Result{Code: code, Stdout: stdout.String(), Stderr: stderr.String()}
	switch {
	case ctx.Err() != nil:
		err = fmt.Errorf("%s: %s: %w: %s", h.Name(), strings.Join(c.Args, " "), ctx.Err(), tail(res.Stderr, 500))
	case err != nil:
		err = fmt.Errorf("%s: %s: %w", h.Name(), strings.Join(c.Args, " "), err)
	case code != 0:
		err = &ExitError{Machine: h.Name(), Args: c.Args, Code: code, Stderr: res.Stderr}
	}
	return res, err
}

// CopyIn implements Machine.
func (h *Host) CopyIn(src, dst string) error {
	return h.inRoot(func(r rootFS) error { return r.copyIn(src, dst) })
}

// ReadFile implements Machine.
func (h *Host) ReadFile(name string) (data []byte, err error) {
	err = h.inRoot(func(r rootFS) error { data, err = r.readFile(name); return err })
	return data, err
}

// WriteFile implements Machine.
func (h *Host) WriteFile(name string, data []byte, mode os.FileMode) error {
	return h.inRoot(func(r rootFS) error { return r.writeFile(name, bytes.NewReader(data), mode) })
}

func (h *Host) inRoot(do func(rootFS) error) error {
	p := h.init()
	f, err := os.Open(filepath.Join("/proc", fmt.Sprint(p.PID), "root"))
	if err != nil || !p.alive() {
		if f != nil {
			f.Close()
		}
		return fmt.Errorf("%s: %w", h.Name(), ErrNotRunning)
	}
	defer f.Close()
	if err := do(rootFS{f}); err != nil {
		return fmt.Errorf("%s: %w", h.Name(), err)
	}
	return nil
}
