package steps

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"

	"github.com/node-upgrader/node-upgrader/hostexec"
	"github.com/node-upgrader/node-upgrader/hostexec/hostexectest"
	"github.com/node-upgrader/node-upgrader/image"
)

const (
	oldKubelet = "kubelet v1.35.4"
	newKubelet = "kubelet v1.36.3"
)

// kubeletNode is a worker with a kubelet that reports to a cluster. A binary is
// a text: "kubelet VERSION".
type kubeletNode struct {
	*cluster
	units *hostexectest.Units
	step  Step
	root  string
	boot  time.Time

	// broken spoils what the program with this text does once it runs.
	broken map[string]func(n *kubeletNode)
	// What the running kubelet does.
	alive, healthz, heartbeats, reports bool
	text                                string // of the running program
}

func newKubeletNode(t *testing.T, objects ...kruntime.Object) *kubeletNode {
	t.Helper()
	c := newCluster(t, append(objects, aNode("n1"))...)
	n := &kubeletNode{cluster: c, root: c.env.Host.FS.Root(), boot: c.env.Clock.Now().Add(-time.Hour), broken: map[string]func(*kubeletNode){}}
	n.step = kubeletStep()
	n.write("/usr/bin/kubelet", oldKubelet)
	n.write("/usr/local/bin/kubectl", "kubectl v1.35.4")
	n.write("/var/lib/kubelet/config.yaml", "kind: KubeletConfiguration\n")
	n.write("/var/lib/kubelet/kubeadm-flags.env", "KUBELET_KUBEADM_ARGS=\"--node-ip=10.0.0.1\"\n")
	n.write("/var/lib/kubelet/cpu_manager_state", "old format")
	for name, text := range map[string]string{"kubelet": newKubelet, "kubectl": "kubectl v1.36.3"} {
		n.write("/image/bin/"+name, text)
	}
	n.env.Bundle = &image.Bundle{Dir: filepath.Join(n.root, "image"), Manifest: image.Manifest{
		KubernetesVersion: "v1.36.3",
		Components:        []image.Component{{Name: image.Kubectl, Version: "v1.36.3"}, {Name: image.Kubelet, Version: "v1.36.3"}},
		Files:             []image.File{bundled("kubectl", "kubectl v1.36.3"), bundled("kubelet", newKubelet)},
	}}
	n.units = hostexectest.NewUnits(hostexec.Unit{
		Name: kubeletUnit, ActiveState: "active", SubState: "running", MainPID: 100, Fragment: "/lib/systemd/system/kubelet.service",
		ExecStart:   [][]string{{"/usr/bin/kubelet", "$KUBELET_CONFIG_ARGS", "$KUBELET_KUBEADM_ARGS"}},
		Environment: []string{"KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml"},
		EnvFiles:    []hostexec.EnvFile{{Path: kubeletFlagsFile, Optional: true}},
	})
	n.units.OnStart(kubeletUnit, n.start)
	n.units.OnStop(kubeletUnit, func() error { n.alive = false; return nil })
	commands := &hostexectest.Commands{}
	commands.On("kubelet", n.trial)
	n.env.Host.Units, n.env.Host.Commands = n.units, commands
	n.env.Probe = func(_ context.Context, url string) error {
		if url != "http://127.0.0.1:10248/healthz" || !n.alive || !n.healthz {
			return errors.New(url + ": connection refused")
		}
		return nil
	}
	n.slept = n.tick
	n.tick()
	if err := n.start(100); err != nil {
		t.Fatal(err)
	}
	// It has been running for a while.
	n.stat(100, 10*time.Minute)
	n.tick()
	return n
}

func bundled(name, text string) image.File {
	sum := sha256.Sum256([]byte(text))
	return image.File{
		Path: "bin/" + name, Component: name, Place: "/usr/bin/" + name, Mode: 0o755,
		Size: int64(len(text)), SHA256: hex.EncodeToString(sum[:]),
	}
}

func (n *kubeletNode) write(name, text string) {
	n.t.Helper()
	real := filepath.Join(n.root, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(real), 0o755), os.WriteFile(real, []byte(text), 0o755)); err != nil { //nolint:gosec // run bits are looked at
		n.t.Fatal(err)
	}
}

func (n *kubeletNode) read(name string) string {
	data, err := os.ReadFile(filepath.Join(n.root, name))
	if err != nil {
		return "nothing"
	}
	return string(data)
}

// stat is /proc/PID/stat of a process of this age.
func (n *kubeletNode) stat(pid int, age time.Duration) {
	start := int(n.env.Clock.Now().Add(-age).Sub(n.boot).Seconds() * ticksPerSecond)
	n.write(fmt.Sprintf("/proc/%d/stat", pid), fmt.Sprintf("%d (kubelet (x) ) S 1%s %d 0\n", pid, strings.Repeat(" 0", 17), start))
}

// start is what a start of the unit does.
func (n *kubeletNode) start(pid int) error {
	n.text = n.read("/usr/bin/kubelet")
	n.write(fmt.Sprintf("/proc/%d/exe", pid), n.text)
	n.stat(pid, 0)
	n.alive, n.healthz, n.heartbeats, n.reports = true, true, true, true
	if spoil := n.broken[n.text]; spoil != nil {
		spoil(n)
	}
	if !n.alive {
		return &hostexec.JobError{Verb: "start", Unit: kubeletUnit, Result: "failed"}
	}
	return nil
}

// tick is what goes on while somebody waits: time, and the kubelet's reports.
func (n *kubeletNode) tick() {
	now := n.env.Clock.Now()
	n.write("/proc/uptime", fmt.Sprintf("%.2f 0.00\n", now.Sub(n.boot).Seconds()))
	if !n.alive {
		return
	}
	if n.reports {
		node := n.node().DeepCopy()
		node.Status.NodeInfo.KubeletVersion = strings.TrimPrefix(n.text, "kubelet ")
		n.touch(node)
	}
	if n.heartbeats {
		renewed := metav1.NewMicroTime(now)
		lease := &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: "n1", Namespace: corev1.NamespaceNodeLease},
			Spec:       coordinationv1.LeaseSpec{RenewTime: &renewed},
		}
		gvr := coordinationv1.SchemeGroupVersion.WithResource("leases")
		if n.client.Tracker().Update(gvr, lease, lease.Namespace) != nil {
			if err := n.client.Tracker().Create(gvr, lease, lease.Namespace); err != nil {
				n.t.Error(err)
			}
		}
	}
}

const trialEnd = `E1121 11:17:15.721013 15664 run.go:72] "command failed" err="failed to run Kubelet: create health checker: configure watchdog: error converting WATCHDOG_USEC"`

// trial is the bundle's kubelet with flags that it knows or does not, and a
// configuration that it reads from the node or from its standard input.
func (n *kubeletNode) trial(c hostexec.Command) (string, error) {
	said := func(text string) error {
		return &hostexec.CommandError{Argv: c.Argv, Code: 1, Stderr: text, Err: errors.New("exit status 1")}
	}
	if len(c.Argv) == 2 && c.Argv[1] == "--version" {
		return "Kubernetes " + strings.TrimPrefix(n.read(c.Argv[0]), "kubelet ") + "\n", nil
	}
	if c.Argv[0] != filepath.Join(n.root, "image/bin/kubelet") || !strings.Contains(strings.Join(c.Env, " "), "WATCHDOG_USEC=trial") {
		n.t.Errorf("not a trial: %v %v", c.Argv, c.Env)
	}
	for _, arg := range c.Argv {
		if strings.HasPrefix(arg, "--gone") || strings.HasPrefix(arg, "--pod-infra-container-image") {
			flag, _, _ := strings.Cut(arg, "=")
			return "", said(`E1121 1 run.go:72] "command failed" err="failed to parse kubelet flag: unknown flag: ` + flag + `"`)
		}
	}
	config := n.read("/var/lib/kubelet/config.yaml")
	if c.Stdin != nil {
		data, err := io.ReadAll(c.Stdin)
		if err != nil {
			return "", err
		}
		config = string(data)
	}
	if strings.Contains(config, "Gone: true") {
		return "", said("panic: failed to merge: unrecognized feature gate: Gone\n\ngoroutine 1 [running]:\nmain.main()\n")
	}
	return "", said(trialEnd)
}

func noUnits(t *testing.T) hostexec.Units {
	t.Helper()
	return hostexectest.NewUnits()
}
