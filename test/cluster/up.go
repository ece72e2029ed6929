package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/node-upgrader/node-upgrader/test/components"
	"github.com/node-upgrader/node-upgrader/test/host"
)

// Options say what Up makes.
type Options struct {
	Set     string // name of a components.Set, as "1.35"
	Workers int    // 0 or 1
	// Bare is a host "cp" with containerd running and all images imported, and
	// no cluster.
	Bare bool
	// Progress gets a line for each long step; nil is silence.
	Progress io.Writer
}

// Cluster is a running cluster.
type Cluster struct {
	Ground       *host.Ground
	Set          components.Set
	Components   components.Built
	ControlPlane host.Machine
	Worker       host.Machine // nil without one
	// Dial reaches the API server where there is no Ground.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Nodes are the cluster's machines, the control plane first.
func (c *Cluster) Nodes() []host.Machine {
	if c.Worker == nil {
		return []host.Machine{c.ControlPlane}
	}
	return []host.Machine{c.ControlPlane, c.Worker}
}

// build is what the snapshots of one component set are made from.
type build struct {
	set         components.Set
	parts       components.Built
	workload    string // archive
	workloadRef string
	systemd     bool // the cgroup driver
	progress    io.Writer
}

func prepare(ctx context.Context, opts Options) (*build, error) {
	if opts.Workers < 0 || opts.Workers > 1 {
		return nil, fmt.Errorf("%d workers: 0 or 1", opts.Workers)
	}
	if opts.Bare && opts.Workers > 0 {
		return nil, errors.New("a bare host has no workers")
	}
	b := &build{progress: opts.Progress}
	if b.progress == nil {
		b.progress = io.Discard
	}
	var err error
	if b.set, err = components.Lookup(opts.Set); err != nil {
		return nil, err
	}
	if b.parts, err = components.Build(ctx, b.set, b.progress); err != nil {
		return nil, err
	}
	if b.workload, b.workloadRef, err = components.WorkloadImage(ctx, b.progress); err != nil {
		return nil, err
	}
	b.systemd, err = host.UnifiedCgroups()
	return b, err
}

// Prepare builds and caches everything that Up with the same options needs, and
// starts nothing that lasts.
func Prepare(ctx context.Context, opts Options) error {
	b, err := prepare(ctx, opts)
	if err == nil {
		_, err = b.snapshot(ctx, opts)
	}
	if err != nil {
		return fmt.Errorf("prepare cluster %s: %w", opts.Set, err)
	}
	return nil
}

// Up makes a cluster on the ground, from a cached snapshot where there is one:
// the first time takes minutes, then it is seconds. It returns when the API
// server is ready, every node is Ready and every container runs. A failure
// leaves the machines on the ground as they are, to be looked at.
func Up(ctx context.Context, g *host.Ground, opts Options) (*Cluster, error) {
	b, err := prepare(ctx, opts)
	if err != nil {
		return nil, fmt.Errorf("cluster %s: %w", opts.Set, err)
	}
	dir, err := b.snapshot(ctx, opts)
	if err != nil {
		return nil, fmt.Errorf("cluster %s: %w", opts.Set, err)
	}
	c, err := b.boot(ctx, g, dir, opts)
	if err != nil {
		return nil, fmt.Errorf("cluster %s: %w", opts.Set, err)
	}
	return c, nil
}

func (b *build) boot(ctx context.Context, g *host.Ground, dir string, opts Options) (*Cluster, error) {
	start := time.Now()
	c := &Cluster{Ground: g, Set: b.set, Components: b.parts}
	cp, err := g.Add(ctx, host.Spec{Name: controlPlaneName, IP: controlPlaneIP, From: filepath.Join(dir, controlPlaneName)})
	if err != nil {
		return nil, err
	}
	c.ControlPlane = cp
	if opts.Workers > 0 {
		worker, err := g.Add(ctx, host.Spec{Name: workerName, IP: workerIP, From: filepath.Join(dir, workerName)})
		if err != nil {
			return nil, err
		}
		c.Worker = worker
	}
	copied := time.Now()
	for _, m := range c.Nodes() {
		if err := m.Boot(ctx); err != nil {
			return nil, err
		}
	}
	if opts.Bare {
		err := waitContainerd(ctx, cp)
		fmt.Fprintf(b.progress, "host %s: containerd %s up in %.1f s\n", controlPlaneName, b.set.Containerd, time.Since(start).Seconds())
		return c, err
	}
	ready, err := c.waitFresh(ctx, copied)
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(b.progress, "cluster %s: disks copied %.1f s, API ready %.1f s, all containers running %.1f s\n", b.set.Name,
		copied.Sub(start).Seconds(), ready.Sub(start).Seconds(), time.Since(start).Seconds())
	return c, nil
}

// Kubectl runs kubectl with the administrator's rights on the control plane and
// returns what it writes.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) (string, error) {
	res, err := c.ControlPlane.Exec(ctx, host.Command(append([]string{"kubectl"}, args...)...))
	return res.Stdout, err
}

// Expired tells whether a snapshot's certificates are near their end.
func Expired(dir string) bool {
	const limit = 300 * 24 * time.Hour
	info, err := os.Stat(dir)
	return err == nil && time.Since(info.ModTime()) > limit
}
