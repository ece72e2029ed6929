package uml

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"

	"github.com/otiai10/copy"

	"github.com/node-upgrader/node-upgrader/test/host"
	"github.com/node-upgrader/node-upgrader/test/uml/link"
)

// Exec implements host.Machine. A Terminal cannot be had.
func (m *Machine) Exec(ctx context.Context, c host.Cmd) (host.Result, error) {
	if c.Terminal {
		return host.Result{Code: -1}, fmt.Errorf("%s: no terminal over the line: %w", m.Name(), errors.ErrUnsupported)
	}
	g, err := m.running()
	if err != nil {
		return host.Result{Code: -1}, err
	}
	request := link.Request{Op: link.OpExec, Args: c.Args, Dir: c.Dir, Env: append([]string{
		"PATH=" + searchPath, "HOME=/root", "TERM=dumb", "LANG=C.UTF-8",
		"KUBECONFIG=/etc/kubernetes/admin.conf",
	}, c.Env...)}
	if c.Dir == "" {
		request.Dir = "/root"
	}
	var stdout, stderr output
	out, errs := io.Writer(&stdout), io.Writer(&stderr)
	if c.Stdout != nil {
		out = c.Stdout
	}
	if c.Stderr != nil {
		errs = c.Stderr
	}
	code, err := g.line.Run(ctx, request, c.Stdin, out, errs)
	res := host.Result{Code: code, Stdout: stdout.String(), Stderr: stderr.String()}
	switch {
	case errors.Is(err, link.ErrLost) && g.endsSoon():
		err = fmt.Errorf("%s: %s: %w", m.Name(), strings.Join(c.Args, " "), host.ErrNotRunning)
	case err != nil:
		err = fmt.Errorf("%s: %s: %w", m.Name(), strings.Join(c.Args, " "), err)
	case code != 0:
		err = &host.ExitError{Machine: m.Name(), Args: c.Args, Code: code, Stderr: res.Stderr}
	}
	return res, err
}

// output is a buffer that may still be written to while it is read.
type output struct {
	mu   sync.Mutex
	data bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.data.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.data.String()
}

// CopyIn implements host.Machine. The copy is on the guest's disk when it returns.
func (m *Machine) CopyIn(src, dst string) error {
	return m.bring(dst, func(tmp string) error {
		return copy.Copy(src, tmp, copy.Options{OnSymlink: func(name string) copy.SymlinkAction {
			if name == src {
				return copy.Deep
			}
			return copy.Shallow
		}})
	})
}

// WriteFile implements host.Machine. The file is on the guest's disk when it
// returns.
func (m *Machine) WriteFile(name string, data []byte, mode fs.FileMode) error {
	return m.bring(name, func(tmp string) error {
		return errors.Join(os.WriteFile(tmp, data, mode), os.Chmod(tmp, mode))
	})
}

// bring has put make a file or directory that the guest can see, and the guest
// copy it. Each has a new name: the guest may remember an old one.
func (m *Machine) bring(dst string, put func(tmp string) error) error {
	g, err := m.running()
	if err != nil {
		return err
	}
	m.state.Lock()
	m.copies++
	name := fmt.Sprint(m.copies)
	m.state.Unlock()
	tmp := filepath.Join(m.disk.path("exchange"), name)
	err = put(tmp)
	if err == nil {
		request := link.Request{Op: link.OpCopy, Source: exchange + "/" + name, Path: path.Clean("/" + dst)}
		_, err = g.line.Run(context.Background(), request, nil, nil, nil)
	}
	if err := errors.Join(err, os.RemoveAll(tmp)); err != nil {
		return fmt.Errorf("%s: copy to %s: %w", m.Name(), dst, err)
	}
	return nil
}

// ReadFile implements host.Machine.
func (m *Machine) ReadFile(name string) ([]byte, error) {
	g, err := m.running()
	if err != nil {
		return nil, err
	}
	var data output
	if _, err := g.line.Run(context.Background(), link.Request{Op: link.OpRead, Path: path.Clean("/" + name)}, nil, &data, nil); err != nil {
		return nil, err
	}
	return data.data.Bytes(), nil
}
