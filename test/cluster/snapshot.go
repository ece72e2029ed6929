package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/node-upgrader/node-upgrader/test/cache"
	"github.com/node-upgrader/node-upgrader/test/host"
)

// snapshot returns the directory with the disks that opts ask for.
func (b *build) snapshot(ctx context.Context, opts Options) (string, error) {
	node, err := b.nodeSnapshot(ctx)
	if err != nil || opts.Bare {
		return node, err
	}
	cp, err := b.cached(ctx, "cluster", node, func(g *host.Ground, tmp string) error {
		return b.initialise(ctx, g, node, tmp)
	})
	if err != nil || opts.Workers == 0 {
		return cp, err
	}
	return b.cached(ctx, "cluster-with-worker", cp, func(g *host.Ground, tmp string) error {
		return b.join(ctx, g, node, cp, tmp)
	})
}

// cached makes a snapshot from another on a ground of its own. The directory of
// what it is made from names that.
func (b *build) cached(ctx context.Context, kind, from string, make func(g *host.Ground, tmp string) error) (string, error) {
	key := strings.Join([]string{layoutVersion, from, filesKey()}, "\n")
	if dir := cache.Path(kind, key); Expired(dir) {
		fmt.Fprintf(b.progress, "%s of %s: its certificates end soon, made again\n", kind, b.set.Name)
		if err := os.RemoveAll(dir); err != nil {
			return "", err
		}
	}
	return cache.DirContext(ctx, kind, key, func(tmp string) error {
		start := time.Now()
		g, err := host.Open(ctx, host.Options{Progress: b.progress})
		if err != nil {
			return err
		}
		if err := errors.Join(make(g, tmp), g.Close()); err != nil {
			return fmt.Errorf("make %s: %w", kind, err)
		}
		fmt.Fprintf(b.progress, "%s of %s: made in %.0f s\n", kind, b.set.Name, time.Since(start).Seconds())
		return nil
	})
}

// nodeSnapshot is a host with containerd and all images.
func (b *build) nodeSnapshot(ctx context.Context) (string, error) {
	layer, err := b.layer(ctx)
	if err != nil {
		return "", err
	}
	from := strings.Join([]string{host.BaseKey(), layer, b.parts.Images, b.workload}, "\n")
	return b.cached(ctx, "node", from, func(g *host.Ground, tmp string) error {
		m, err := g.Add(ctx, host.Spec{Name: controlPlaneName, IP: controlPlaneIP, Layers: []string{layer}})
		if err != nil {
			return err
		}
		if err := m.Boot(ctx); err != nil {
			return err
		}
		if err := waitContainerd(ctx, m); err != nil {
			return err
		}
		fmt.Fprintf(b.progress, "node %s: importing %d images\n", b.set.Name, len(b.parts.ImageNames)+1)
		if err := importImages(ctx, m, b.parts, b.workload); err != nil {
			return err
		}
		return save(ctx, m, tmp)
	})
}

// release ends the cluster's controllers and gives their leases back, so that
// they do not wait 15 s for them after the snapshot's boot. The kubelet, which
// would start them again, is stopped first.
func release(ctx context.Context, c *Cluster) error {
	m := c.ControlPlane
	if _, err := m.Exec(ctx, host.Command("systemctl", "stop", "kubelet.service")); err != nil {
		return err
	}
	// A command's name in the kernel has at most 15 letters.
	for _, name := range []string{"kube-controller", "kube-scheduler"} {
		if _, err := m.Exec(ctx, host.Command("pkill", "-KILL", "-x", name)); err != nil {
			return err
		}
	}
	_, err := c.Kubectl(ctx, "delete", "--namespace=kube-system", "lease", "kube-controller-manager", "kube-scheduler")
	return err
}

// save powers the machine off and takes its snapshot.
func save(ctx context.Context, m host.Machine, dir string) error {
	if err := m.PowerOff(ctx); err != nil {
		return err
	}
	return m.Snapshot(filepath.Join(dir, m.Name()))
}

// configure writes what differs from node to node and enables the kubelet.
func (b *build) configure(ctx context.Context, m host.Machine, facts nodeFacts) error {
	for name, to := range map[string]string{
		"10-bridge.conflist": "/etc/cni/net.d/10-bridge.conflist",
		"pod-routes.service": "/etc/systemd/system/pod-routes.service",
	} {
		data, err := render(name, facts)
		if err != nil {
			return err
		}
		if err := m.WriteFile(to, data, 0o644); err != nil {
			return err
		}
	}
	if _, err := m.Exec(ctx, host.Command("systemctl", "enable", "--now", "pod-routes.service")); err != nil {
		return err
	}
	_, err := m.Exec(ctx, host.Command("systemctl", "enable", "kubelet.service"))
	return err
}

// member boots a node's disk under a name of its own, ready for kubeadm.
func (b *build) member(ctx context.Context, g *host.Ground, node, name, ip string) (host.Machine, nodeFacts, error) {
	facts := b.factsOf(name)
	m, err := g.Add(ctx, host.Spec{Name: name, IP: ip, From: filepath.Join(node, controlPlaneName)})
	if err != nil {
		return nil, facts, err
	}
	if err := m.Boot(ctx); err != nil {
		return nil, facts, err
	}
	if err := waitContainerd(ctx, m); err != nil {
		return nil, facts, err
	}
	return m, facts, b.configure(ctx, m, facts)
}

// kubeadm runs kubeadm's verb on the node with a configuration of ours.
func (b *build) kubeadm(ctx context.Context, m host.Machine, verb, template string, facts nodeFacts) error {
	config, err := render(template, facts)
	if err != nil {
		return err
	}
	file := "/etc/kubernetes/" + template
	if err := m.WriteFile(file, config, 0o600); err != nil {
		return err
	}
	start := time.Now()
	fmt.Fprintf(b.progress, "cluster %s: kubeadm %s … ", b.set.Name, verb)
	if err := kubeadm(ctx, m, verb, "--config", file); err != nil {
		return err
	}
	fmt.Fprintf(b.progress, "%.0f s\n", time.Since(start).Seconds())
	return nil
}

// initialise makes a single control plane.
func (b *build) initialise(ctx context.Context, g *host.Ground, node, tmp string) error {
	m, facts, err := b.member(ctx, g, node, controlPlaneName, controlPlaneIP)
	if err != nil {
		return err
	}
	if err := b.kubeadm(ctx, m, "init", "kubeadm.yaml", facts); err != nil {
		return err
	}
	c := &Cluster{Ground: g, ControlPlane: m}
	if err := b.deploy(ctx, c, facts); err != nil {
		return err
	}
	return errors.Join(release(ctx, c), save(ctx, m, tmp))
}

// kubeadm puts what kubeadm wrote into the error: its reasons are on stdout.
func kubeadm(ctx context.Context, m host.Machine, args ...string) error {
	res, err := m.Exec(ctx, host.Command(append([]string{"kubeadm"}, args...)...))
	if err != nil {
		return fmt.Errorf("%w\n%s", err, res.Stdout)
	}
	return nil
}

// deploy starts the node's workload and waits for all of the cluster.
func (b *build) deploy(ctx context.Context, c *Cluster, facts nodeFacts) error {
	manifest, err := render("workload.yaml", facts)
	if err != nil {
		return err
	}
	_, err = c.ControlPlane.Exec(ctx, host.Cmd{Args: []string{"kubectl", "apply", "-f", "-"}, Stdin: strings.NewReader(string(manifest))})
	if err != nil {
		return err
	}
	_, err = c.waitFresh(ctx, time.Time{})
	return err
}

// join adds a worker to a control plane.
func (b *build) join(ctx context.Context, g *host.Ground, node, cluster, tmp string) error {
	c, err := b.boot(ctx, g, cluster, Options{Set: b.set.Name})
	if err != nil {
		return err
	}
	w, facts, err := b.member(ctx, g, node, workerName, workerIP)
	if err != nil {
		return err
	}
	if err := b.configure(ctx, c.ControlPlane, b.factsOf(controlPlaneName)); err != nil {
		return err
	}
	command, err := c.ControlPlane.Exec(ctx, host.Command("kubeadm", "token", "create", "--ttl", tokenTTL, "--print-join-command"))
	if err != nil {
		return err
	}
	if facts.Token, facts.CAHash, err = parseJoin(command.Stdout); err != nil {
		return err
	}
	if err := b.kubeadm(ctx, w, "join", "join.yaml", facts); err != nil {
		return err
	}
	c.Worker = w
	if err := b.deploy(ctx, c, facts); err != nil {
		return err
	}
	// The worker first: its kubelet then still reaches the API server.
	return errors.Join(save(ctx, w, tmp), release(ctx, c), save(ctx, c.ControlPlane, tmp))
}

var joinCommand = regexp.MustCompile(`--token (\S+) --discovery-token-ca-cert-hash (\S+)`)

func parseJoin(output string) (token, hash string, err error) {
	found := joinCommand.FindStringSubmatch(output)
	if found == nil {
		return "", "", fmt.Errorf("no token in %q", output)
	}
	return found[1], found[2], nil
}
