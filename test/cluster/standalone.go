package cluster

import (
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"time"

	"github.com/node-upgrader/node-upgrader/test/components"
	"github.com/node-upgrader/node-upgrader/test/host"
)

// Standalone is what makes a node of a machine that is not on a ground: one with
// cgroup v2 of its own.
type Standalone struct{ build *build }

// NewStandalone builds the components of a set.
func NewStandalone(ctx context.Context, set string, progress io.Writer) (Standalone, error) {
	b, err := prepare(ctx, Options{Set: set, Progress: progress})
	if err != nil {
		return Standalone{}, err
	}
	b.systemd = true
	return Standalone{b}, nil
}

// Components are those of the set.
func (s Standalone) Components() components.Built { return s.build.parts }

// Layer is the directory of a node's own files, see the package's comment.
func (s Standalone) Layer(ctx context.Context) (string, error) { return s.build.layer(ctx) }

// Archives are the images of the set and of the workload.
func (s Standalone) Archives() ([]string, error) {
	archives, err := filepath.Glob(filepath.Join(s.build.parts.Images, "*.tar"))
	return append(archives, s.build.workload), err
}

// Name and IP are those that the machine has to have.
func (s Standalone) Name() string { return controlPlaneName }

// IP is explained at Name.
func (s Standalone) IP() string { return controlPlaneIP }

// Key names all that Initialise makes a cluster from, images and programs aside.
func (s Standalone) Key() string { return layoutVersion + "\n" + filesKey() }

// Cluster is the cluster on the machine.
func (s Standalone) Cluster(m host.Machine, dial func(context.Context, string, string) (net.Conn, error)) *Cluster {
	return &Cluster{Set: s.build.set, Components: s.build.parts, ControlPlane: m, Dial: dial}
}

// Initialise makes a running machine with the layer and the images a single
// control plane, with its workload, and leaves it so that it can be powered off.
func (s Standalone) Initialise(ctx context.Context, c *Cluster) error {
	m, facts := c.ControlPlane, s.build.factsOf(controlPlaneName)
	if err := s.build.configure(ctx, m, facts); err != nil {
		return err
	}
	config, err := render("kubeadm.yaml", facts)
	if err != nil {
		return err
	}
	const file = "/etc/kubernetes/kubeadm.yaml"
	if err := m.WriteFile(file, config, 0o600); err != nil {
		return err
	}
	// A kernel that is a process is slow, and kubeadm is not as patient with the
	// add-ons as with the rest; their phase may be repeated.
	if err := kubeadm(ctx, m, "init", "--config", file, "--skip-phases=addon", "--ignore-preflight-errors=SystemVerification,NumCPU"); err != nil {
		return err
	}
	for attempt := 1; ; attempt++ {
		err := kubeadm(ctx, m, "init", "phase", "addon", "all", "--config", file)
		if err == nil {
			break
		}
		if attempt == 5 {
			return err
		}
	}
	err = s.build.deploy(ctx, c, facts)
	if errors.Is(err, context.DeadlineExceeded) {
		err = c.WaitFresh(ctx, time.Time{}, 10*time.Minute)
	}
	if err != nil {
		return err
	}
	return release(ctx, c)
}

// WaitFresh waits until everything runs that ran before the machine was booted,
// at since, for as long as ctx and limit allow.
func (c *Cluster) WaitFresh(ctx context.Context, since time.Time, limit time.Duration) error {
	end := time.Now().Add(limit)
	for {
		_, err := c.waitFresh(ctx, since)
		if err == nil || ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) || time.Now().After(end) {
			return err
		}
	}
}
