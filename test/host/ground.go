package host

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"sync"

	"golang.org/x/sys/unix"
)

// Ground is a bridge with hosts on it. Its methods may be called from several
// goroutines.
type Ground struct {
	dir      string
	progress io.Writer
	owner    *os.File // its flock says that this process is alive; nil if persistent
	lifeline io.Closer

	mu     sync.Mutex
	record record
	hosts  map[string]*Host
}

// Options are how a ground is opened.
type Options struct {
	// Name of the ground, for Attach; by default a random one.
	Name string
	// Persist lets hosts and bridge outlive this process, until Close.
	Persist bool
	// Progress gets a line for each long step; nil is silence.
	Progress io.Writer
}

// Spec describes a host.
type Spec struct {
	Name string // at most 12 of a-z, 0-9 and '-'
	IP   string // in 10.89.0.0/24, not the gateway's
	// From is a directory made by Machine.Snapshot. Without it the disk is
	// new. Name and IP may differ from the snapshot's, if nothing on the disk
	// knows them by heart, as a Kubernetes node does.
	From string
	// Layers are directories laid over the base root file system of a new
	// disk, the top one first. Nobody may change them later.
	Layers []string
}

var names = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,10}[a-z0-9])?$`)

func (s Spec) validate() error {
	if !names.MatchString(s.Name) {
		return fmt.Errorf("host name %q is not 1 to 12 of a-z, 0-9 and '-'", s.Name)
	}
	ip, err := netip.ParseAddr(s.IP)
	gateway := netip.MustParseAddr(Gateway)
	if err != nil || !netip.PrefixFrom(gateway, prefix).Contains(ip) || ip == gateway {
		return fmt.Errorf("host %s: %q is no address for a host beside %s/%d", s.Name, s.IP, Gateway, prefix)
	}
	if s.From != "" && len(s.Layers) > 0 {
		return fmt.Errorf("host %s: a snapshot has its own layers", s.Name)
	}
	return nil
}

// Open makes a ground. It first sweeps what killed processes have left.
func Open(ctx context.Context, opts Options) (*Ground, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("open ground: throwaway hosts need root (sudo)")
	}
	if opts.Progress == nil {
		opts.Progress = io.Discard
	}
	if opts.Name == "" {
		id := make([]byte, 3)
		_, _ = rand.Read(id) // never fails
		opts.Name = "t" + hex.EncodeToString(id)
	}
	if !names.MatchString(opts.Name) {
		return nil, fmt.Errorf("open ground: name %q is not 1 to 12 of a-z, 0-9 and '-'", opts.Name)
	}
	g := &Ground{
		dir:      filepath.Join(runDir(), opts.Name),
		progress: opts.Progress,
		record:   record{BootID: bootID(), Persist: opts.Persist, Hosts: map[string]*hostRecord{}},
		hosts:    map[string]*Host{},
	}
	if err := g.open(ctx); err != nil {
		return nil, fmt.Errorf("open ground %s: %w", opts.Name, err)
	}
	return g, nil
}

func (g *Ground) open(ctx context.Context) error {
	unlock, err := lockRun(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if err := sweep(); err != nil {
		return fmt.Errorf("sweep: %w", err)
	}
	if err := saveKernel("/proc/sys", kernelFile()); err != nil {
		return err
	}
	if err := raiseLimits("/proc/sys"); err != nil {
		return err
	}
	if err := os.Mkdir(g.dir, 0o755); err != nil {
		return err // exists: a ground of that name is open
	}
	if err := g.start(); err != nil {
		return errors.Join(err, g.remove())
	}
	return nil
}

func (g *Ground) start() error {
	if !g.record.Persist {
		var err error
		if g.owner, err = os.OpenFile(ownerFile(g.dir), os.O_CREATE|os.O_RDWR, 0o644); err != nil {
			return err
		}
		if err := unix.Flock(int(g.owner.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			return fmt.Errorf("lock %s: %w", g.owner.Name(), err)
		}
	}
	if err := g.save(); err != nil {
		return err
	}
	log, err := os.OpenFile(filepath.Join(g.dir, "lan.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	g.record.LAN, g.lifeline, err = startLAN(lanSpec{Ground: g.dir, Persist: g.record.Persist}, log)
	if err != nil {
		return err
	}
	return g.save()
}

// Attach returns a persistent ground of an earlier process.
func Attach(name string) (*Ground, error) {
	g := &Ground{dir: filepath.Join(runDir(), name), progress: io.Discard, hosts: map[string]*Host{}}
	if !names.MatchString(name) {
		return nil, fmt.Errorf("attach to ground %q: not a name", name)
	}
	var err error
	if g.record, err = readRecord(g.dir); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("there is no ground %s", name)
	} else if err != nil {
		return nil, fmt.Errorf("attach to ground %s: %w", name, err)
	}
	if !g.record.Persist {
		return nil, fmt.Errorf("attach to ground %s: it belongs to a running process", name)
	}
	for _, r := range g.record.Hosts {
		h, err := g.host(r)
		if err != nil {
			return nil, err
		}
		g.hosts[r.Name] = h
	}
	return g, nil
}

// Name is what Attach finds the ground by.
func (g *Ground) Name() string { return filepath.Base(g.dir) }

// Add makes a host with a disk, not yet running.
func (g *Ground) Add(ctx context.Context, spec Spec) (*Host, error) {
	if err := spec.validate(); err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, other := range g.hosts {
		if other.Name() == spec.Name || other.IP() == spec.IP {
			return nil, fmt.Errorf("host %s: %s (%s) is on this ground already", spec.Name, other.Name(), other.IP())
		}
	}
	r := &hostRecord{Name: spec.Name, IP: spec.IP, Disk: filepath.Join(g.dir, "hosts", spec.Name)}
	var d disk
	var err error
	if spec.From != "" {
		d, err = openDisk(r.Disk, spec.From)
		if err == nil && (d.Name != spec.Name || d.IP != spec.IP) {
			d.Name, d.IP = spec.Name, spec.IP
			err = errors.Join(d.identify(), d.save())
		}
	} else {
		var base string
		if base, err = Base(ctx, g.progress); err == nil {
			layers := append(append([]string{}, spec.Layers...), base)
			d, err = newDisk(r.Disk, diskInfo{Layers: layers, Name: spec.Name, IP: spec.IP})
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("host %s: make disk: %w", spec.Name, err), removeTree(r.Disk))
	}
	h := &Host{ground: g, record: r, disk: d}
	g.record.Hosts[spec.Name] = r
	g.hosts[spec.Name] = h
	return h, g.saveHost(spec.Name)
}

// Host returns the host of that name, or nil.
func (g *Ground) Host(name string) *Host {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.hosts[name]
}

// Hosts returns all hosts, in no order.
func (g *Ground) Hosts() []*Host {
	g.mu.Lock()
	defer g.mu.Unlock()
	var all []*Host
	for _, h := range g.hosts {
		all = append(all, h)
	}
	return all
}

// Close ends all hosts and the bridge and removes every trace. The last ground
// to go restores the kernel's settings. Closing twice is no error.
func (g *Ground) Close() error {
	unlock, err := lockRun(context.Background())
	if err != nil {
		return err
	}
	defer unlock()
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.remove(); err != nil {
		return fmt.Errorf("close ground %s: %w", g.Name(), err)
	}
	return nil
}

// remove ends and deletes everything of the ground. The run lock is held.
func (g *Ground) remove() error {
	err := g.record.end(0)
	if g.lifeline != nil {
		g.lifeline.Close()
	}
	for _, h := range g.hosts {
		h.hangUp()
	}
	if err != nil {
		return err // the record stays, for the next sweep
	}
	if err := removeTree(g.dir); err != nil {
		return err
	}
	if g.owner != nil {
		g.owner.Close()
	}
	return restoreIfLast()
}
