package steps

import (
	"context"
	"fmt"
	"net"
	"path"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/node-upgrader/node-upgrader/hostexec"
	"github.com/node-upgrader/node-upgrader/steps/kube"
)

// kubeletHealth compares what the kubelet and the API server say with what is
// to be: /healthz, the node's version, and a Ready that was reported by the
// kubelet that runs now. A Ready on its own proves nothing: it stays True for
// up to 50 s after a kubelet's end.
func kubeletHealth(ctx context.Context, env Env, f kubeletFound) ([]Fact, error) {
	healthz := Fact{"kubelet /healthz", "ok", "ok"}
	if err := probeHealthz(ctx, env, f.args); err != nil {
		healthz.Have = err.Error()
		return []Fact{healthz}, nil // the rest would be the old kubelet's
	}
	started, err := processStart(env, f.unit.MainPID)
	if err != nil {
		return nil, err
	}
	client, err := env.Kube(ctx)
	if err != nil {
		return nil, err
	}
	node, err := findNode(ctx, env, client)
	if err != nil {
		return nil, err
	}
	ready := readyCondition(node)
	seen, err := lastHeartbeat(ctx, env, client, ready)
	if err != nil {
		return nil, err
	}
	facts := []Fact{
		healthz,
		{"node's kubeletVersion", node.Status.NodeInfo.KubeletVersion, targetVersion(env.Bundle)},
		{"node's Ready", string(ready.Status), string(corev1.ConditionTrue)},
		{"node's heartbeat", "of the running kubelet", "of the running kubelet"},
	}
	if ready.Status != corev1.ConditionTrue && ready.Message != "" {
		facts[2].Have += " (" + ready.Message + ")"
	}
	if !seen.After(started) {
		facts[3].Have = fmt.Sprintf("%s older than it", started.Sub(seen).Round(time.Second))
	}
	return facts, nil
}

// lastHeartbeat is when the kubelet last told the API server that it lives, by
// the node's own clock: its lease, or its Ready condition, which is written
// every few minutes only.
func lastHeartbeat(ctx context.Context, env Env, client kubernetes.Interface, ready corev1.NodeCondition) (time.Time, error) {
	seen := ready.LastHeartbeatTime.Time
	err := kube.Retry(ctx, env.Clock.Sleep, func(ctx context.Context) error {
		lease, err := client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, env.Node.Name, metav1.GetOptions{})
		if err == nil && lease.Spec.RenewTime != nil && lease.Spec.RenewTime.After(seen) {
			seen = lease.Spec.RenewTime.Time
		}
		return err
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return seen, fmt.Errorf("get the lease of node %s: %w", env.Node.Name, err)
	}
	return seen, nil
}

// controlPlaneHealth asks the static pods here and the API server that the
// kubelet uses, which may be another node's.
func controlPlaneHealth(ctx context.Context, env Env) ([]Fact, error) {
	pods, err := staticPods(env.Host.FS)
	if err != nil {
		return nil, err
	}
	facts, err := healthy(ctx, env, pods)
	if err != nil {
		return nil, err
	}
	client, err := env.Kube(ctx)
	if err != nil {
		return nil, err
	}
	readyz := Fact{"API server /readyz", "ok", "ok"}
	if err := kube.Ready(ctx, client); err != nil {
		readyz.Have = err.Error()
	}
	return append(facts, readyz), nil
}

// probeHealthz asks the kubelet itself; nil where its endpoint is switched off.
func probeHealthz(ctx context.Context, env Env, args []string) error {
	url, err := healthzURL(env.Host.FS, args)
	if err != nil || url == "" {
		return err
	}
	return env.Probe(ctx, url)
}

// healthzURL is the kubelet's health endpoint by its flags, else by its
// configuration and its drop-ins, else by default; "" where it is switched off.
func healthzURL(host hostexec.FS, args []string) (string, error) {
	port, address := int64(10248), "127.0.0.1"
	files, err := kubeletConfigFiles(host, args)
	if err != nil {
		return "", err
	}
	for _, file := range files {
		data, err := host.ReadFile(file)
		if err != nil {
			return "", err
		}
		var c struct {
			HealthzPort        *int64 `json:"healthzPort"`
			HealthzBindAddress string `json:"healthzBindAddress"`
		}
		if err := yaml.Unmarshal(data, &c); err != nil {
			return "", fmt.Errorf("read %s: %w", file, err)
		}
		if c.HealthzPort != nil {
			port = *c.HealthzPort
		}
		if c.HealthzBindAddress != "" {
			address = c.HealthzBindAddress
		}
	}
	if v, ok := flagValue(args, "healthz-port"); ok {
		if port, err = strconv.ParseInt(v, 10, 32); err != nil {
			return "", fmt.Errorf("the kubelet's --healthz-port: %w", err)
		}
	}
	if v, ok := flagValue(args, "healthz-bind-address"); ok {
		address = v
	}
	if port == 0 {
		return "", nil
	}
	switch ip := net.ParseIP(address); {
	case ip == nil:
	case ip.IsUnspecified() && ip.To4() != nil:
		address = "127.0.0.1"
	case ip.IsUnspecified():
		address = "::1"
	}
	return "http://" + net.JoinHostPort(address, strconv.FormatInt(port, 10)) + "/healthz", nil
}

// kubeletConfigFiles are the configuration and then its drop-ins, in the order
// in which they are merged.
func kubeletConfigFiles(host hostexec.FS, args []string) ([]string, error) {
	var files []string
	if file, ok := flagValue(args, "config"); ok && file != "" {
		files = append(files, file)
	}
	dir, ok := flagValue(args, "config-dir")
	if !ok || dir == "" {
		return files, nil
	}
	entries, err := host.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if !e.IsDir() && strings.HasSuffix(e.Name(), ".conf") {
			files = append(files, path.Join(dir, e.Name()))
		}
	}
	return files, nil
}
