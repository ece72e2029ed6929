package uml

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/node-upgrader/node-upgrader/test/host"
)

// Spec describes a machine.
type Spec struct {
	Name string
	IP   string // inside the machine only
	// Image is the path of a disk image, see Image.
	Image string
	// From is a directory made by Machine.Snapshot, instead of an Image.
	From string
	// Memory in MiB, by default 2048.
	Memory int
}

// Machine is a host.Machine that is a User-Mode Linux process.
type Machine struct {
	spec Spec
	disk disk

	mu     sync.Mutex // one Boot, PowerOff, Crash, Snapshot at a time
	guest  *guest     // nil before the first boot
	copies int
	state  sync.Mutex // guards guest and copies
}

var _ host.Machine = (*Machine)(nil)

const (
	bootLimit     = 3 * time.Minute
	powerOffLimit = 45 * time.Second
	searchPath    = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	exchange      = "/run/guest/exchange"
)

// New makes a machine with a disk, not yet running. It needs root.
func New(spec Spec) (*Machine, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("new machine: its own PID namespace needs root (sudo)")
	}
	if spec.Memory == 0 {
		spec.Memory = 2048
	}
	d, err := newDisk(spec)
	if err != nil {
		return nil, fmt.Errorf("machine %s: make disk: %w", spec.Name, err)
	}
	return &Machine{spec: spec, disk: d}, nil
}

// Name implements host.Machine.
func (m *Machine) Name() string { return m.spec.Name }

// IP implements host.Machine. The address is reached from inside only.
func (m *Machine) IP() string { return m.spec.IP }

// ConsoleLog is the file with what kernel and systemd said at the last boot.
func (m *Machine) ConsoleLog() string { return m.disk.path("console.log") }

// Running implements host.Machine.
func (m *Machine) Running() bool {
	g, err := m.running()
	return err == nil && g != nil
}

func (m *Machine) running() (*guest, error) {
	m.state.Lock()
	defer m.state.Unlock()
	if m.guest == nil || m.guest.ended() {
		return nil, fmt.Errorf("%s: %w", m.Name(), host.ErrNotRunning)
	}
	return m.guest, nil
}

// Boot implements host.Machine.
func (m *Machine) Boot(ctx context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.Running() {
		return fmt.Errorf("boot %s: it is running", m.Name())
	}
	ctx, cancel := context.WithTimeout(ctx, bootLimit)
	defer cancel()
	g, err := startGuest(m.spec, m.disk)
	if err == nil {
		m.state.Lock()
		m.guest = g
		m.state.Unlock()
		if err = g.line.Ready(ctx); err == nil {
			err = m.waitStarted(ctx)
		}
		if err != nil {
			g.kill()
		}
	}
	if err != nil {
		log, _ := os.ReadFile(m.ConsoleLog())
		return fmt.Errorf("boot %s: %w\nconsole: %s", m.Name(), err, tail(log))
	}
	return nil
}

// waitStarted waits for the end of systemd's start.
func (m *Machine) waitStarted(ctx context.Context) error {
	for {
		res, err := m.Exec(ctx, host.Command("systemctl", "is-system-running", "--wait"))
		state := strings.TrimSpace(res.Stdout)
		if state == "running" || state == "degraded" {
			return nil
		}
		if exit := (*host.ExitError)(nil); err != nil && !errors.As(err, &exit) {
			return err
		}
		select { // its bus is not there yet
		case <-ctx.Done():
			return fmt.Errorf("wait for systemd (%s): %w", state, ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// PowerOff implements host.Machine.
func (m *Machine) PowerOff(ctx context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	g, err := m.running()
	if err != nil {
		return nil //nolint:nilerr // it is off
	}
	ctx, cancel := context.WithTimeout(ctx, powerOffLimit)
	defer cancel()
	if _, err := m.Exec(ctx, host.Command("systemctl", "poweroff")); err == nil {
		select {
		case <-g.done:
		case <-ctx.Done():
		}
	}
	g.kill()
	return nil
}

// Crash implements host.Machine: the power goes.
func (m *Machine) Crash() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if g, err := m.running(); err == nil {
		g.kill()
	}
	return nil
}

// Snapshot implements host.Machine.
func (m *Machine) Snapshot(dir string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.Running() {
		return fmt.Errorf("snapshot %s: power it off first", m.Name())
	}
	if err := m.disk.snapshot(dir); err != nil {
		return fmt.Errorf("snapshot %s: %w", m.Name(), err)
	}
	return nil
}

// Close implements host.Machine.
func (m *Machine) Close() error {
	return errors.Join(m.Crash(), m.disk.remove())
}

func tail(log []byte) string {
	const most = 3000
	if len(log) > most {
		log = log[len(log)-most:]
	}
	return string(log)
}
