//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/node-upgrader/node-upgrader/steps"
	"github.com/node-upgrader/node-upgrader/test/figures"
	"github.com/node-upgrader/node-upgrader/test/host"
	"github.com/node-upgrader/node-upgrader/test/payload"
	"github.com/node-upgrader/node-upgrader/test/registry"
)

const (
	registryIP   = "10.89.0.20"
	registryPort = "5000"
	registryHost = registryIP + ":" + registryPort
)

// A node without any way out but a private registry, with TLS and a password, is
// upgraded by one image: what was built and signed elsewhere, carried there as a
// file and mirrored. It brings the control plane's images too. The node demands
// the signature, and its network sees no other connection.
func TestAirGap(t *testing.T) {
	t.Parallel()
	p := carried(t)
	prepare(t, 0)
	g := ground(t)
	private, inside := privateRegistry(t, g)
	ref := mirrored(t, p, private, inside)

	c, client := upOn(t, g, 0)
	cp := c.ControlPlane
	if have := sh(t, cp, "ctr", "-n", "k8s.io", "images", "list", "-q"); strings.Contains(have, ":v"+p.Target.Set.Kubernetes) {
		t.Fatalf("the target's images are there already:\n%s", have)
	}
	trustRegistry(t, cp, private)
	public, err := os.ReadFile(p.key + ".pub")
	must(t, err)
	must(t, cp.WriteFile(steps.PolicyKeys, public, 0o644))
	watchNetwork(t, cp)

	apply(t, c, p.Payload, "rbac")
	sh(t, cp, "kubectl", "-n", namespace, "create", "secret", "docker-registry", "private",
		"--docker-server="+registryHost, "--docker-username="+private.User, "--docker-password="+private.Password)
	before := pulled(t, private)
	apply(t, c, p.Payload, "pod", "--node", cp.Name(), "--image", ref, "--image-pull-secrets", "private",
		"--run-id", "airgap", "--ignore-preflight-errors=SystemVerification")
	pod := await(t, client, "upgrader-"+cp.Name(), 20*time.Minute, succeeded)
	show(t, client, pod)
	must(t, c.Wait(t.Context()))
	atTarget(t, cp, client, p.Target.Set, true)
	allRunning(t, client)

	record(t, figures.Info("airgap_pulled_mib", float64(pulled(t, private)-before)/(1<<20), "MiB"))
	seen := connections(t, cp)
	t.Logf("connections of the node: %v", seen)
	if !slices.Contains(seen, registryIP+" . tcp . "+registryPort) {
		t.Error("not even the registry was asked")
	}
	for _, to := range seen {
		// CoreDNS asks the node's name server once whether it is itself.
		if to != registryIP+" . tcp . "+registryPort && to != host.Gateway+" . udp . 53" {
			t.Errorf("the node has asked for %s", to)
		}
	}
}

// cargo is a payload whose image is signed and brings the control plane's images.
type cargo struct {
	payload.Payload
	key string // without its ending
}

// carried is what somebody has built and signed where there is a network.
func carried(t *testing.T) cargo {
	t.Helper()
	dir := t.TempDir()
	p := cargo{Payload: load(t), key: filepath.Join(dir, "release")}
	p.Bundle, p.Image = filepath.Join(dir, "bundle"), filepath.Join(dir, "upgrader.tar")
	local(t, p, "bundle", "build", "--from", filepath.Dir(p.Target.Bin), "--images", "--images-from", p.Target.Images, "--out", p.Bundle)
	local(t, p, "bundle", "keygen", "--out", p.key)
	local(t, p, "bundle", "sign", "--key", p.key+".key", p.Bundle)
	p.Ref = registryHost + "/upgrader:v" + p.Target.Set.Kubernetes
	local(t, p, "bundle", "image", "--bundle", p.Bundle, "--upgrader", p.Upgrader, "--ref", p.Ref, "--sign-key", p.key+".key", "--sbom", "--out", p.Image)
	local(t, p, "bundle", "verify", "--key", p.key+".pub", p.Image)
	return p
}

// local runs the program on this machine.
func local(t *testing.T, p cargo, args ...string) {
	t.Helper()
	outside(t, append([]string{p.Upgrader}, args...), "COSIGN_PASSWORD=a password")
}

// outside runs a command on this machine, and returns its last line.
func outside(t *testing.T, argv []string, env ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		t.Fatalf("%v: %v\n%s%s", argv, err, out, exit.Stderr)
	}
	must(t, err)
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[len(lines)-1]
}

// privateRegistry runs on a host of its own beside the nodes; inside is what leads
// a command into that host's network.
func privateRegistry(t *testing.T, g *host.Ground) (r *registry.Registry, inside []string) {
	t.Helper()
	m, err := g.Add(t.Context(), host.Spec{Name: "registry", IP: registryIP})
	must(t, err)
	must(t, m.Boot(t.Context()))
	inside = []string{"nsenter", fmt.Sprintf("--net=/proc/%d/ns/net", m.PID())}
	r, err = registry.Start(t.Context(), registry.Options{Listen: registryHost, Prefix: inside, Progress: lines{t}})
	must(t, err)
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r, inside
}

// mirrored puts the carried file into the registry and returns the image's name
// by digest.
func mirrored(t *testing.T, p cargo, r *registry.Registry, inside []string) string {
	t.Helper()
	argv := slices.Concat(inside, []string{p.Upgrader, "mirror", p.Image, p.Ref, "--registry-ca", r.CA})
	ref := outside(t, argv, "DOCKER_CONFIG="+r.DockerConfig)
	if !strings.HasPrefix(ref, registryHost+"/upgrader@sha256:") {
		t.Fatalf("mirror says %q", ref)
	}
	verify := slices.Concat(inside, []string{p.Upgrader, "bundle", "verify", "--key", p.key + ".pub", p.Image})
	outside(t, verify)
	return ref
}

// trustRegistry is what an administrator does once on a node.
func trustRegistry(t *testing.T, m host.Machine, r *registry.Registry) {
	t.Helper()
	ca, err := os.ReadFile(r.CA)
	must(t, err)
	dir := path.Join("/etc/containerd/certs.d", registryHost)
	must(t, m.WriteFile(path.Join(dir, "ca.crt"), ca, 0o644))
	must(t, m.WriteFile(path.Join(dir, "hosts.toml"), fmt.Appendf(nil, "server = %q\n[host.%q]\n  capabilities = [\"pull\", \"resolve\"]\n  ca = %q\n",
		"https://"+registryHost, "https://"+registryHost, path.Join(dir, "ca.crt")), 0o644))
	config, err := m.ReadFile("/etc/containerd/config.toml")
	must(t, err)
	config = append(config, "\n[plugins.\"io.containerd.grpc.v1.cri\".registry]\n  config_path = \"/etc/containerd/certs.d\"\n"...)
	must(t, m.WriteFile("/etc/containerd/config.toml", config, 0o644))
	sh(t, m, "systemctl", "restart", "containerd")
}

// watchNetwork makes the node's kernel note whom the node, and its pods, begin to
// speak to beyond the node.
func watchNetwork(t *testing.T, m host.Machine) {
	t.Helper()
	_, err := m.Exec(t.Context(), host.Cmd{Args: []string{"nft", "-f", "-"}, Stdin: strings.NewReader(`
table inet watch {
  set to { type ipv4_addr . inet_proto . inet_service; flags dynamic; size 65535; }
  set to6 { type ipv6_addr; flags dynamic; size 65535; }
  chain out {
    type filter hook postrouting priority 300; policy accept;
    oifname "eth0" ct state new ip protocol { tcp, udp } add @to { ip daddr . ip protocol . th dport }
    oifname "eth0" ip6 daddr != { fe80::/10, ff00::/8 } add @to6 { ip6 daddr }
  }
}
`)})
	must(t, err)
}

var destination = regexp.MustCompile(`[0-9.]+ \. (?:tcp|udp) \. \d+`)

// connections are those that watchNetwork has noted.
func connections(t *testing.T, m host.Machine) []string {
	t.Helper()
	if six := sh(t, m, "nft", "list", "set", "inet", "watch", "to6"); strings.Contains(six, "elements") {
		t.Errorf("over IPv6:\n%s", six)
	}
	return destination.FindAllString(sh(t, m, "nft", "list", "set", "inet", "watch", "to"), -1)
}

// pulled is how many bytes of blobs nodes have got.
func pulled(t *testing.T, r *registry.Registry) int64 {
	t.Helper()
	all, err := r.Requests()
	must(t, err)
	bytes, _ := registry.Pulled(all)
	return bytes
}
