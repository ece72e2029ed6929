//go:build e2e_upstream

package upstream

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/node-upgrader/node-upgrader/test/cluster"
	"github.com/node-upgrader/node-upgrader/test/components"
	"github.com/node-upgrader/node-upgrader/test/host"
	"github.com/node-upgrader/node-upgrader/test/payload"
)

const (
	from, to = "1.35", "1.36"

	// An administrator's choice to pull all images from one registry. That
	// containerd 2.3 looks there without being told is not so:
	// https://github.com/containerd/containerd/issues/12808
	mirrors = `
[plugins."io.containerd.grpc.v1.cri".registry]
  config_path = "/etc/containerd/certs.d"
`
	mirror = `server = "http://` + registryAt + `"

[host."http://` + registryAt + `"]
  capabilities = ["pull", "resolve"]
`
)

// node is a node with containerd of the target version, of a cluster but without
// a running kubelet. done proves that the cluster is whole.
func node(t *testing.T) (m host.Machine, done func()) {
	t.Helper()
	set, err := components.Lookup(to)
	must(t, err)
	if os.Getenv("CRITEST_BARE") != "" {
		m, done = bare(t), func() {}
	} else {
		m, done = upgraded(t)
	}
	if version := sh(t, m, "ctr", "version"); !strings.Contains(version, "v"+set.Containerd) {
		t.Fatalf("not the containerd %s that is to be judged:\n%s", set.Containerd, version)
	}
	return m, done
}

// upgraded is the control plane of a cluster after `upgrader run`.
func upgraded(t *testing.T) (host.Machine, func()) {
	t.Helper()
	p, err := payload.Make(t.Context(), to, t.TempDir(), lines{t})
	must(t, err)
	c := up(t, cluster.Options{Set: from, Progress: lines{t}})
	cp := c.ControlPlane
	useRegistry(t, cp)
	must(t, p.CopyTo(cp))
	must(t, p.ImportImages(t.Context(), cp))
	start := time.Now()
	_, err = cp.Exec(t.Context(), host.Cmd{
		Args:   []string{payload.NodeUpgrader, "run", "--ignore-preflight-errors=SystemVerification"},
		Stdout: lines{t}, Stderr: lines{t},
	})
	if err != nil {
		t.Fatalf("upgrade: %v", err)
	}
	t.Logf("upgraded in %.0f s", time.Since(start).Seconds())
	must(t, c.Wait(t.Context()))
	sh(t, cp, "systemctl", "stop", "kubelet")
	return cp, func() {
		sh(t, cp, "systemctl", "start", "kubelet")
		must(t, c.Wait(t.Context()))
		t.Log("the cluster is whole after critest")
	}
}

// bare is a host with the new containerd and a network for pods.
func bare(t *testing.T) host.Machine {
	t.Helper()
	c := up(t, cluster.Options{Set: to, Bare: true, Progress: lines{t}})
	const network = `{"cniVersion": "1.0.0", "name": "bridge", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.244.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}`
	must(t, c.ControlPlane.WriteFile("/etc/cni/net.d/10-bridge.conflist", []byte(network), 0o644))
	useRegistry(t, c.ControlPlane)
	return c.ControlPlane
}

// useRegistry makes containerd pull every image from the registry in the node.
func useRegistry(t *testing.T, m host.Machine) {
	t.Helper()
	const file = "/etc/containerd/config.toml"
	config, err := m.ReadFile(file)
	must(t, err)
	must(t, m.WriteFile(file, append(config, mirrors...), 0o644))
	must(t, m.WriteFile("/etc/containerd/certs.d/_default/hosts.toml", []byte(mirror), 0o644))
	sh(t, m, "systemctl", "restart", "containerd")
}

func up(t *testing.T, opts cluster.Options) *cluster.Cluster {
	t.Helper()
	must(t, cluster.Prepare(t.Context(), opts))
	g, err := host.Open(t.Context(), host.Options{Progress: lines{t}})
	must(t, err)
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Errorf("clean up: %v", err)
		}
	})
	c, err := cluster.Up(t.Context(), g, opts)
	must(t, err)
	return c
}
