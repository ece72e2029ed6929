//go:build e2e

package e2e

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/node-upgrader/node-upgrader/test/figures"
	"github.com/node-upgrader/node-upgrader/test/host"
	"github.com/node-upgrader/node-upgrader/test/payload"
)

// leaveWorkload keeps the drain off the workload, so that what a kubelet's swap
// does to it shows.
const leaveWorkload = "--pod-selector=app!=workload-cp"

// badImage is an UpgradeConfiguration that waits a minute for a static pod, and
// not five, and leaves etcd alone.
const badImage = `apiVersion: kubeadm.k8s.io/v1beta4
kind: UpgradeConfiguration
apply:
  ignorePreflightErrors: [SystemVerification]
  etcdUpgrade: false
timeouts:
  upgradeManifests: 1m0s
`

// fault is one component that does not come up.
type fault struct {
	name   string
	step   string // that fails
	broken string // program of the bundle, as bin/containerd
	how    payload.Fault
	args   []string
	want   []string // in the message
	// Before and after, on the node.
	prepare, mend [][]string
	// moves are files that steps before the failing one have rightly changed.
	moves bool
}

func faults() []fault {
	plain := "--ignore-preflight-errors=SystemVerification"
	image, kept := "registry.k8s.io/kube-apiserver:v1.36.3", "registry.k8s.io/kube-apiserver:kept"
	return []fault{
		{
			name: "containerd_exits", step: "containerd", broken: "bin/containerd", how: payload.Exits, args: []string{plain},
			want: []string{"containerd.service", "journalctl -u containerd"},
		},
		{
			name: "containerd_hangs", step: "containerd", broken: "bin/containerd", how: payload.Hangs, args: []string{plain},
			want: []string{"wait for containerd", "journalctl -u containerd"},
		},
		{
			name: "image_does_not_run", step: "kubeadm", args: []string{"--config=/root/upgrade.yaml"}, moves: true,
			want: []string{"kube-apiserver", "kubeadm.log"},
			prepare: [][]string{
				{"ctr", "-n", "k8s.io", "images", "tag", image, kept},
				{"ctr", "-n", "k8s.io", "images", "tag", "--force", "registry.k8s.io/pause:3.10.2", image},
			},
			mend: [][]string{
				{"ctr", "-n", "k8s.io", "images", "tag", "--force", kept, image},
			},
		},
		{
			name: "kubelet_exits", step: "kubelet", broken: "bin/kubelet", how: payload.Exits, args: []string{plain, leaveWorkload}, moves: true,
			want: []string{"kubelet.service does not stay up", "journalctl --unit kubelet"},
		},
		{
			name: "kubelet_crash_loops", step: "kubelet", broken: "bin/kubelet", how: payload.Crashes, args: []string{plain, leaveWorkload}, moves: true,
			want: []string{"kubelet.service does not stay up", "journalctl --unit kubelet"},
		},
	}
}

// Each of these ends with a node that is Ready at its old version, a workload
// that has noticed nothing, and exit code 4; and at last the upgrade goes
// through with a bundle that is well.
func TestBadComponents(t *testing.T) {
	t.Parallel()
	p := load(t)
	c, client := up(t, 0)
	cp := c.ControlPlane
	must(t, p.CopyTo(cp))
	must(t, p.ImportImages(t.Context(), cp))
	must(t, cp.WriteFile("/root/upgrade.yaml", []byte(badImage), 0o600))
	for _, f := range faults() {
		t.Run(f.name, func(t *testing.T) { f.run(t, p, cp, client) })
		if f.name == "containerd_hangs" {
			t.Run("dead_man", func(t *testing.T) { f.deadMan(t, p, cp, client) })
		}
	}
	code, _, stderr := upgrader(t, cp, payload.NodeUpgrader, nil, "run", "--ignore-preflight-errors=SystemVerification")
	if code != 0 {
		t.Fatalf("with a good bundle: exit %d\n%s", code, stderr)
	}
	must(t, c.Wait(t.Context()))
	atTarget(t, cp, client, p.Target.Set, true)
	unschedulable(t, client, cp)
}

func (f fault) run(t *testing.T, good payload.Payload, cp host.Machine, client kubernetes.Interface) {
	bundle := f.bundle(t, good, cp)
	for _, command := range f.prepare {
		sh(t, cp, command...)
	}
	before := viewOf(t, cp, client)
	var stopped, noticed time.Time
	args := append([]string{"run", "-o", "json", "--bundle=" + bundle}, f.args...)
	code, out, stderr := upgrader(t, cp, payload.NodeUpgrader, func(e event) {
		switch {
		case e.Step != f.step:
		case stopped.IsZero() && (e.Msg == "stopping" || strings.HasPrefix(e.Msg, "running kubeadm")):
			stopped = time.Now()
		case noticed.IsZero() && e.Level == "ERROR":
			noticed = time.Now()
		}
	}, args...)
	t.Logf("exit %d\n%s%s", code, out, stderr)
	if code != 4 {
		t.Errorf("exit code %d, want 4", code)
	}
	for _, word := range append(f.want, "rolled back", "do: ") {
		if !strings.Contains(stderr, word) {
			t.Errorf("the message does not say %q", word)
		}
	}
	if stopped.IsZero() || noticed.IsZero() {
		t.Fatalf("step %s stopped its service at %v and saw the fault at %v", f.step, stopped, noticed)
	}
	back := ready(t, client, cp.Name())
	put(t, figures.Info("rollback_seconds_"+f.name, back.Sub(noticed).Seconds(), "s"),
		figures.Info("outage_seconds_"+f.name, back.Sub(stopped).Seconds(), "s"))
	awaitVersion(t, client, cp.Name(), before.node.KubeletVersion)
	after := viewOf(t, cp, client)
	if f.moves { // the steps before it went well
		after.files, after.tasks, after.node.ContainerRuntimeVersion = before.files, before.tasks, before.node.ContainerRuntimeVersion
	}
	before.compare(t, after)
	for _, command := range f.mend {
		sh(t, cp, command...)
	}
}

// ready waits until the node is Ready, and stays so; it returns when it was.
func ready(t *testing.T, client kubernetes.Interface, name string) time.Time {
	t.Helper()
	awaitReady(t, client, name, time.Time{})
	back := time.Now()
	awaitReady(t, client, name, back)
	return back
}

// awaitVersion waits until the kubelet has told its version: it renews its lease
// before it says anew what it is.
func awaitVersion(t *testing.T, client kubernetes.Interface, name, version string) {
	t.Helper()
	have := ""
	err := wait.PollUntilContextTimeout(t.Context(), time.Second, time.Minute, true, func(context.Context) (bool, error) {
		have = nodeInfo(t, client, name).KubeletVersion
		return have == version, nil
	})
	if err != nil {
		t.Errorf("the kubelet says that it is %s, not %s", have, version)
	}
}

// bundle puts the bundle with the broken program onto the node.
func (f fault) bundle(t *testing.T, good payload.Payload, m host.Machine) string {
	t.Helper()
	if f.broken == "" {
		return payload.NodeBundle
	}
	dir := t.TempDir()
	program := filepath.Join(dir, "broken")
	must(t, payload.Break(t.Context(), filepath.Join(filepath.Dir(good.Target.Bin), f.broken), f.how, program))
	p, err := good.Mixed(t.Context(), good.Target, map[string]string{f.broken: program}, dir)
	must(t, err)
	bundle := "/root/" + f.name
	must(t, m.CopyIn(p.Bundle, bundle))
	t.Cleanup(func() {
		if _, err := m.Exec(context.Background(), host.Command("rm", "-r", bundle)); err != nil {
			t.Error(err)
		}
	})
	return bundle
}

// view is a node as a rolled-back step has to leave it.
type view struct {
	node         corev1.NodeSystemInfo
	workload     map[container]string
	files, tasks string
}

func viewOf(t *testing.T, m host.Machine, client kubernetes.Interface) view {
	t.Helper()
	return view{
		node: nodeInfo(t, client, m.Name()), workload: workloadTasks(t, m, client),
		files: installed(t, m), tasks: sh(t, m, "sh", "-c", "ctr -n k8s.io tasks ls | sort"),
	}
}

func (v view) compare(t *testing.T, now view) {
	t.Helper()
	for _, c := range []struct {
		what        string
		before, now any
	}{
		{"node", v.node, now.node},
		{"workload", v.workload, now.workload},
		{"files", strings.Split(v.files, "\n"), strings.Split(now.files, "\n")},
		{"tasks", strings.Split(v.tasks, "\n"), strings.Split(now.tasks, "\n")},
	} {
		if diff := cmp.Diff(c.before, c.now); diff != "" {
			t.Errorf("%s, before and now:\n%s", c.what, diff)
		}
	}
}

func nodeInfo(t *testing.T, client kubernetes.Interface, name string) corev1.NodeSystemInfo {
	t.Helper()
	node, err := client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
	must(t, err)
	info := node.Status.NodeInfo
	info.BootID = ""
	return info
}

// workloadTasks are the workload's containers with their restart counts and the
// processes that run in them.
func workloadTasks(t *testing.T, m host.Machine, client kubernetes.Interface) map[container]string {
	t.Helper()
	found := map[container]string{}
	for c, restarts := range containers(t, client, m.Name()) {
		if !strings.HasPrefix(c.Pod, "default/workload") {
			continue
		}
		id := strings.TrimPrefix(c.ID, "containerd://")
		task := strings.Fields(sh(t, m, "sh", "-c", "ctr -n k8s.io tasks ls | grep "+id))
		found[c] = strings.Join(task, " ") + ", restarts " + string(rune('0'+restarts))
	}
	if len(found) == 0 {
		t.Fatal("no workload to look at")
	}
	return found
}

// installed is every program that an upgrade replaces and every file that
// configures one, with digest, owner and mode.
func installed(t *testing.T, m host.Machine) string {
	t.Helper()
	return sh(t, m, "sh", "-c", `
find /usr/bin/kube* /usr/local/bin /usr/local/sbin /opt/cni/bin /etc/kubernetes /etc/containerd /etc/systemd /etc/default /var/lib/kubelet/config.yaml /var/lib/kubelet/kubeadm-flags.env \( -type f -o -type l \) -printf '%p %m %U:%G %T@ ' -exec sha256sum {} \;`)
}
