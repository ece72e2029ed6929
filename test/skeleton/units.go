package skeleton

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

const (
	containerdUnit = "containerd.service"
	kubeletUnit    = "kubelet.service"
)

// ErrHang is a Watch's answer that makes a job or a command hang: until the
// caller's context ends.
var ErrHang = errors.New("skeleton: hang")

// units is the node's systemd.
type units struct{ n *Node }

// do makes a change of the units, unless the watch lets the job fail or hang.
func (u units) do(ctx context.Context, op, name string, change func(*state) error) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	return u.n.effect(hostexec.Effect{Op: op, Object: name}, func(err error) error {
		if errors.Is(err, ErrHang) {
			<-ctx.Done()
			return fmt.Errorf("%s %s: no result from systemd: %w", op, name, context.Cause(ctx))
		}
		return err
	}, func() error { return u.n.world.change(change) })
}

// runsWell tells whether a program of this text comes up.
func runsWell(text string) bool { return !strings.Contains(text, "broken") }

func (u units) Show(ctx context.Context, name string) (hostexec.Unit, error) {
	if err := ctx.Err(); err != nil {
		return hostexec.Unit{}, context.Cause(ctx)
	}
	found := hostexec.Unit{Name: name, LoadState: "not-found", ActiveState: "inactive"}
	return found, u.n.world.look(func(s *state) error {
		if known, ok := s.Units[name]; ok {
			found = known.Unit
		}
		return nil
	})
}

func (u units) Start(ctx context.Context, name string) error {
	return u.do(ctx, hostexec.OpStart, name, func(s *state) error {
		known, ok := s.Units[name]
		if !ok {
			return fmt.Errorf("skeleton: unexpected start of %s", name)
		}
		if known.Runs != "" {
			return nil
		}
		binary, err := known.Binary()
		if err != nil {
			return err
		}
		real, err := u.n.fs.Resolve(binary)
		if err != nil {
			return err
		}
		text, err := os.ReadFile(real)
		if info, bad := os.Stat(real); err != nil || bad != nil || info.Mode()&0o100 == 0 || !runsWell(string(text)) {
			known.ActiveState, known.SubState, known.Result = "failed", "failed", "exit-code"
			return &hostexec.JobError{Verb: "start", Unit: name, Result: "failed"}
		}
		known.ActiveState, known.SubState, known.Result = "active", "running", "success"
		known.Runs, known.Started, known.MainPID = string(text), s.Now, u.n.world.process(string(text))
		return nil
	})
}

func (u units) Stop(ctx context.Context, name string) error {
	return u.do(ctx, hostexec.OpStop, name, func(s *state) error {
		known, ok := s.Units[name]
		if !ok {
			return fmt.Errorf("skeleton: unexpected stop of %s", name)
		}
		if known.Runs != "" {
			u.n.world.end(known.MainPID)
		}
		known.ActiveState, known.SubState, known.Runs, known.MainPID = "inactive", "dead", "", 0
		return nil
	})
}

func (u units) Reload(ctx context.Context) error {
	return u.do(ctx, hostexec.OpDaemonReload, "", func(*state) error { return nil })
}

func (u units) ResetFailed(ctx context.Context, name string) error {
	return u.do(ctx, hostexec.OpResetFailed, name, func(s *state) error {
		if known, ok := s.Units[name]; ok && known.ActiveState == "failed" {
			known.ActiveState, known.SubState = "inactive", "dead"
		}
		return nil
	})
}

func (u units) StartTransient(_ context.Context, t hostexec.Transient) error {
	return fmt.Errorf("skeleton: unexpected transient unit %s", t.Name)
}

func (u units) StartTransientTimer(ctx context.Context, t hostexec.Timer) error {
	return u.do(ctx, hostexec.OpStartTimer, t.Name, func(s *state) error {
		if s.Timers == nil {
			s.Timers = map[string][]string{}
		}
		s.Timers[t.Name] = t.Service.Argv
		return nil
	})
}

func (u units) StopTransient(ctx context.Context, name string) error {
	return u.do(ctx, hostexec.OpStopTransient, name, func(s *state) error {
		delete(s.Timers, name)
		return nil
	})
}

func (u units) Kill(_ context.Context, name string, signal int) error {
	return fmt.Errorf("skeleton: unexpected signal %d for %s", signal, name)
}
