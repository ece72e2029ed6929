package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Host is a Machine made of namespaces.
type Host struct {
	ground *Ground
	record *hostRecord // guarded by ground.mu
	disk   disk

	mu       sync.Mutex // one Boot, PowerOff, Crash, Snapshot at a time
	lifeline io.Closer
}

var _ Machine = (*Host)(nil)

const (
	bootLimit     = 60 * time.Second
	powerOffLimit = 45 * time.Second
)

// host returns the host of a record that another process wrote.
func (g *Ground) host(r *hostRecord) (*Host, error) {
	h := &Host{ground: g, record: r, disk: disk{dir: r.Disk}}
	data, err := os.ReadFile(h.disk.path("disk.json"))
	if err == nil {
		err = json.Unmarshal(data, &h.disk.diskInfo)
	}
	if err != nil {
		return nil, fmt.Errorf("host %s: %w", r.Name, err)
	}
	return h, nil
}

// Name implements Machine.
func (h *Host) Name() string { return h.record.Name }

// IP implements Machine.
func (h *Host) IP() string { return h.record.IP }

// ConsoleLog is the file with what PID 1 wrote to its console at the last boot.
func (h *Host) ConsoleLog() string { return h.disk.path("console.log") }

// init returns PID 1 of the host. On a persistent ground another process may
// have booted it since.
func (h *Host) init() process {
	h.ground.mu.Lock()
	defer h.ground.mu.Unlock()
	if h.ground.record.Persist && !h.record.Init.alive() {
		_ = h.ground.refresh("") // what is known stays, if it cannot be read
	}
	return h.record.Init
}

// Running implements Machine.
func (h *Host) Running() bool { return h.init().alive() }

// PID is that of the host's PID 1 in the machine's PID namespace, 0 if off.
func (h *Host) PID() int {
	if p := h.init(); p.alive() {
		return p.PID
	}
	return 0
}

// Boot implements Machine.
func (h *Host) Boot(ctx context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.Running() {
		return fmt.Errorf("boot %s: it is running", h.Name())
	}
	ctx, cancel := context.WithTimeout(ctx, bootLimit)
	defer cancel()
	if err := h.boot(ctx); err != nil {
		log, _ := os.ReadFile(h.ConsoleLog())
		err = fmt.Errorf("boot %s: %w", h.Name(), errors.Join(err, h.end()))
		if len(log) > 0 && !errors.Is(err, ErrRefused) {
			err = fmt.Errorf("%w\nconsole: %s", err, tail(string(log), 2000))
		}
		return err
	}
	return nil
}

func (h *Host) boot(ctx context.Context) error {
	if err := h.end(); err != nil { // of a host that powered itself off
		return err
	}
	var err error
	h.update(func(r *hostRecord) {
		r.Cgroups, err = makeCgroups("upgrader-" + h.ground.Name() + "-" + r.Name)
	}, &err)
	if err != nil {
		return err
	}
	log, err := os.Create(h.ConsoleLog())
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := stage(stageKeeper)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Stderr = log
	in, out, err := start(cmd, bootSpec{
		Name: h.Name(), Disk: h.disk.dir, Layers: h.disk.Layers,
		Cgroups: h.record.Cgroups, Persist: h.ground.record.Persist,
	})
	if err != nil {
		return fmt.Errorf("start keeper: %w", err)
	}
	h.lifeline = in
	go func() { _ = cmd.Wait() }()

	reports := json.NewDecoder(out)
	var r report
	if err := reports.Decode(&r); err != nil || r.Error != "" {
		return errors.Join(err, r.err())
	}
	h.update(func(rec *hostRecord) {
		var e1, e2 error
		rec.Keeper, e1 = lookup(cmd.Process.Pid)
		rec.Init, e2 = lookup(r.PID)
		err = errors.Join(e1, e2)
	}, &err)
	if err == nil {
		err = plug(h.ground.record.LAN.PID, r.PID, h.Name(), h.IP())
	}
	if err != nil {
		return err
	}
	if _, err := io.WriteString(in, "go\n"); err != nil {
		return err
	}
	r = report{}
	if err := reports.Decode(&r); err != nil || r.Error != "" {
		return errors.Join(err, r.err())
	}
	return h.waitStarted(ctx)
}

// update changes the record and writes it.
func (h *Host) update(change func(*hostRecord), err *error) {
	h.ground.mu.Lock()
	defer h.ground.mu.Unlock()
	change(h.record)
	*err = errors.Join(*err, h.ground.saveHost(h.record.Name))
}

// waitStarted waits for systemd's bus and then for the end of its start:
// before, units can be neither enabled nor started.
func (h *Host) waitStarted(ctx context.Context) error {
	socket := fmt.Sprintf("/proc/%d/root/run/systemd/private", h.init().PID)
	for {
		if _, err := os.Lstat(socket); err == nil {
			break
		}
		if err := h.pause(ctx, "systemd's socket"); err != nil {
			return err
		}
	}
	for {
		res, err := h.Exec(ctx, Command("systemctl", "is-system-running"))
		switch state := strings.TrimSpace(res.Stdout); state {
		case "running", "degraded":
			return nil
		default:
			if err := h.pause(ctx, "systemd ("+state+")"); err != nil {
				return err
			}
		}
		if exit := (*ExitError)(nil); err != nil && !errors.As(err, &exit) {
			return err
		}
	}
}

func (h *Host) pause(ctx context.Context, what string) error {
	if !h.Running() {
		return errors.New("PID 1 has ended")
	}
	select {
	case <-ctx.Done():
		return fmt.Errorf("wait for %s: %w", what, ctx.Err())
	case <-time.After(20 * time.Millisecond):
		return nil
	}
}

// end kills whatever runs of the host and removes its cgroups.
func (h *Host) end() error {
	var err error
	h.update(func(r *hostRecord) { err = r.end() }, &err)
	h.hangUp()
	return err
}

func (h *Host) hangUp() {
	if h.lifeline != nil {
		h.lifeline.Close()
		h.lifeline = nil
	}
}

// PowerOff implements Machine.
func (h *Host) PowerOff(ctx context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.init()
	const powerOff = unix.Signal(34 + 4) // SIGRTMIN+4, see systemd(1)
	if err := p.signal(powerOff); err != nil {
		return fmt.Errorf("power off %s: %w", h.Name(), err)
	}
	for end := time.Now().Add(powerOffLimit); p.alive() && ctx.Err() == nil && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	if err := h.end(); err != nil {
		return fmt.Errorf("power off %s: %w", h.Name(), err)
	}
	return nil
}

// Crash implements Machine.
func (h *Host) Crash() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.end(); err != nil {
		return fmt.Errorf("crash %s: %w", h.Name(), err)
	}
	return nil
}

// Snapshot implements Machine.
func (h *Host) Snapshot(dir string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.Running() {
		return fmt.Errorf("snapshot %s: power it off first", h.Name())
	}
	if err := h.disk.snapshot(dir); err != nil {
		return fmt.Errorf("snapshot %s: %w", h.Name(), err)
	}
	return nil
}

// Close implements Machine.
func (h *Host) Close() error {
	if err := h.Crash(); err != nil {
		return err
	}
	h.ground.mu.Lock()
	defer h.ground.mu.Unlock()
	if err := removeTree(h.disk.dir); err != nil {
		return err
	}
	delete(h.ground.record.Hosts, h.record.Name)
	delete(h.ground.hosts, h.record.Name)
	return h.ground.saveHost(h.record.Name)
}
