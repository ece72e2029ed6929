package steps

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

func TestKubelet(t *testing.T) {
	away := func(n *kubeletNode) { n.fail("get", "nodes", io.EOF, apiError(503), io.EOF, apiError(500)) }
	for _, tc := range []struct {
		name    string
		objects []kruntime.Object
		set     func(*kubeletNode)
		exit    int
		text    string // in the error
		hint    string
		running string // the program, after it
		kubectl string
		starts  int
		state   string // cpu_manager_state
	}{
		{name: "a new minor version", running: newKubelet, kubectl: "kubectl v1.36.3", starts: 1},
		{name: "again", set: upgradeKubelet, running: newKubelet, kubectl: "kubectl v1.36.3"},
		{
			name: "only kubectl", running: newKubelet, kubectl: "kubectl v1.36.3",
			set: func(n *kubeletNode) { upgradeKubelet(n); n.write("/usr/local/bin/kubectl", "kubectl v1.35.4") },
		},
		{
			name: "killed between the copy and the restart", running: newKubelet, kubectl: "kubectl v1.36.3", starts: 1,
			set: func(n *kubeletNode) { n.write("/usr/bin/kubelet", newKubelet) },
		},
		{
			name: "killed while it was stopped", running: newKubelet, kubectl: "kubectl v1.36.3", starts: 1,
			set: func(n *kubeletNode) {
				if err := n.units.Stop(context.Background(), kubeletUnit); err != nil {
					n.t.Fatal(err)
				}
			},
		},
		{
			name: "what a drain leaves may run", running: newKubelet, kubectl: "kubectl v1.36.3", starts: 1,
			objects: []kruntime.Object{
				&appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "owner", Namespace: "default"}},
				aPod("agent", ownedBy("DaemonSet")), aPod("etcd", mirrored), aPod("upgrade", ownedBy(""), labelled(OwnLabel, "")),
				aPod("finished", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }), aPod("elsewhere", func(p *corev1.Pod) { p.Spec.NodeName = "n2" }),
			},
		},
		{
			name: "not drained", objects: []kruntime.Object{aPod("web")}, exit: ExitBlocked, text: "from 1.35.4 to 1.36.3 on a drained node only; still here: default/web",
			hint: "upgrader drain", running: oldKubelet, kubectl: "kubectl v1.35.4",
		},
		{
			name: "a patch version needs no drain", objects: []kruntime.Object{aPod("web")}, running: newKubelet, kubectl: "kubectl v1.36.3", starts: 1,
			set: func(n *kubeletNode) {
				n.write("/usr/bin/kubelet", "kubelet v1.36.1")
				if err := n.start(100); err != nil {
					n.t.Fatal(err)
				}
				n.tick()
			},
		},
		{
			name: "a flag that is gone", exit: ExitBlocked, text: "kubelet v1.36.3 refuses this node's flags or configuration: failed to parse kubelet flag: unknown flag: --gone",
			hint: kubeletFlagsFile, running: oldKubelet, kubectl: "kubectl v1.35.4",
			set: func(n *kubeletNode) { n.write(kubeletFlagsFile, `KUBELET_KUBEADM_ARGS="--gone=1"`) },
		},
		{
			name: "a gate that is gone", exit: ExitBlocked, text: "unrecognized feature gate: Gone", hint: "/var/lib/kubelet/config.yaml",
			running: oldKubelet, kubectl: "kubectl v1.35.4",
			set: func(n *kubeletNode) {
				n.write("/var/lib/kubelet/config.yaml", "kind: KubeletConfiguration\nfeatureGates: {Gone: true}\n")
			},
		},
		{
			name: "the trial cannot be made", exit: ExitFailed, text: "try the new kubelet: ", running: oldKubelet, kubectl: "kubectl v1.35.4",
			set: func(n *kubeletNode) { n.env.Host.Commands = unable{} },
		},
		{
			name: "the API server is away for a while", running: newKubelet, kubectl: "kubectl v1.36.3", starts: 1,
			set: func(n *kubeletNode) { away(n); n.broken[newKubelet] = away },
		},
		{
			name: "it does not start", exit: ExitRolledBack, text: "start kubelet.service: systemd job ended as \"failed\" (rolled back)", hint: "journalctl --unit kubelet",
			running: oldKubelet, kubectl: "kubectl v1.35.4", starts: 2, set: spoil(func(n *kubeletNode) { n.alive = false }),
		},
		{
			name: "it starts and does nothing", exit: ExitRolledBack, text: "kubelet /healthz is http://127.0.0.1:10248/healthz: connection refused",
			running: oldKubelet, kubectl: "kubectl v1.35.4", starts: 2, set: spoil(func(n *kubeletNode) { n.healthz = false }),
		},
		{
			name: "the node never reports the version", exit: ExitRolledBack, text: "node's kubeletVersion is v1.35.4, not v1.36.3",
			running: oldKubelet, kubectl: "kubectl v1.35.4", starts: 2, set: spoil(func(n *kubeletNode) { n.reports = false }),
		},
		{
			name: "the last heartbeat is the old one's", exit: ExitRolledBack, text: "node's heartbeat is",
			running: oldKubelet, kubectl: "kubectl v1.35.4", starts: 2, set: spoil(func(n *kubeletNode) { n.heartbeats = false }),
		},
		{
			name: "it crashes again and again", exit: ExitRolledBack, text: "kubelet.service does not stay up: 3 restarts, exit-code",
			running: oldKubelet, kubectl: "kubectl v1.35.4", starts: 2, set: spoil(func(n *kubeletNode) {
				u, _ := n.units.Show(context.Background(), kubeletUnit)
				u.SubState, u.Result, u.Restarts = "auto-restart", "exit-code", 3
				go n.units.Put(u) // the fake holds its lock now
			}),
		},
		{
			name: "it leaves state that the old one cannot read", exit: ExitRolledBack, running: oldKubelet, kubectl: "kubectl v1.35.4", starts: 2, state: "old format",
			set: spoil(func(n *kubeletNode) {
				n.healthz = false
				n.write("/var/lib/kubelet/cpu_manager_state", "new format")
				n.write("/var/lib/kubelet/dra_manager_state", "new format")
			}),
		},
		{
			name: "neither does the old one start again", exit: ExitIncomplete, text: "the rollback is incomplete", running: oldKubelet, kubectl: "kubectl v1.35.4", starts: 2,
			set: func(n *kubeletNode) {
				spoil(func(n *kubeletNode) { n.alive = false })(n)
				n.broken[oldKubelet] = func(n *kubeletNode) { n.alive = false }
			},
		},
		{
			name: "the bundle's kubelet is corrupt", exit: ExitBlocked, text: "sha256", running: oldKubelet, kubectl: "kubectl v1.35.4",
			set: func(n *kubeletNode) { n.write("/image/bin/kubelet", "kubelet v1.36.X") },
		},
		{
			name: "the bundle's kubectl is corrupt", exit: ExitFailed, text: "sha256", running: oldKubelet, kubectl: "kubectl v1.35.4",
			set: func(n *kubeletNode) { n.write("/image/bin/kubectl", "kubectl v1.36.X") },
		},
		{
			name: "a file that was touched in an earlier attempt", exit: ExitRolledBack, running: oldKubelet, kubectl: "kubectl v1.35.4", starts: 2, state: "newer",
			set: func(n *kubeletNode) {
				n.write(n.env.Record.Path("backup/var/lib/kubelet/cpu_manager_state"), "of an earlier attempt")
				n.write("/var/lib/kubelet/cpu_manager_state", "newer")
				spoil(func(n *kubeletNode) { n.alive = false })(n)
			},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := newKubeletNode(t, tc.objects...)
			if tc.set != nil {
				tc.set(n)
			}
			err := n.step.Run(t.Context(), n.env)
			if got := ExitCode(err); got != tc.exit {
				t.Fatalf("exit %d, want %d: %v", got, tc.exit, err)
			}
			if err != nil && !strings.Contains(err.Error(), tc.text) {
				t.Errorf("error %q lacks %q", err, tc.text)
			}
			if hints := strings.Join(Hints(err), "\n"); !strings.Contains(hints, tc.hint) {
				t.Errorf("hints %q lack %q", hints, tc.hint)
			}
			starts, _ := n.units.Count(kubeletUnit)
			got := []any{n.text, n.read("/usr/local/bin/kubectl"), starts}
			if diff := cmp.Diff([]any{tc.running, tc.kubectl, tc.starts}, got); diff != "" {
				t.Error(diff)
			}
			if !n.alive && tc.exit != ExitIncomplete {
				t.Error("no kubelet runs")
			}
			if tc.state != "" {
				if diff := cmp.Diff(tc.state+", nothing", n.read("/var/lib/kubelet/cpu_manager_state")+", "+n.read("/var/lib/kubelet/dra_manager_state")); diff != "" {
					t.Error(diff)
				}
			}
			if err != nil {
				return
			}
			if state, err := n.step.Check(t.Context(), n.env); err != nil || state.Phase != Done {
				t.Errorf("after it, check says %+v, %v", state, err)
			}
			if tc.starts > 0 && tc.name == "a new minor version" {
				if got := n.read(n.env.Record.Path("backup/usr/bin/kubelet")); got != oldKubelet {
					t.Errorf("kept %q", got)
				}
			}
		})
	}
}

func upgradeKubelet(n *kubeletNode) {
	n.write("/usr/bin/kubelet", newKubelet)
	n.write("/usr/local/bin/kubectl", "kubectl v1.36.3")
	n.units.Put(hostexec.Unit{})
	u, _ := n.units.Show(context.Background(), kubeletUnit)
	u.MainPID = 101
	n.units.Put(u)
	if err := n.start(101); err != nil {
		n.t.Fatal(err)
	}
	n.slept()
	_ = n.env.Clock.Sleep(context.Background(), kubeletSettles)
}

// spoil makes the new kubelet misbehave once it runs.
func spoil(how func(*kubeletNode)) func(*kubeletNode) {
	return func(n *kubeletNode) { n.broken[newKubelet] = how }
}

// unable is a host whose programs cannot be run.
type unable struct{}

func (unable) Run(_ context.Context, c hostexec.Command) (hostexec.Output, error) {
	return hostexec.Output{}, &hostexec.CommandError{Argv: c.Argv, Code: -1, Err: errors.New("not on the host")}
}

// A new minor version makes the static pods again some seconds after the node
// is Ready; the step does not end before the API server is back for good.
func TestKubeletWaitsForTheControlPlane(t *testing.T) {
	n := newKubeletNode(t)
	n.env.Node.Role = ControlPlane
	n.write(manifestPath(kubeAPIServer), `{"kind": "Pod", "metadata": {"name": "kube-apiserver"}, "spec": {"containers": [{"name": "kube-apiserver",
		"readinessProbe": {"httpGet": {"scheme": "HTTPS", "host": "10.0.0.1", "port": 6443, "path": "/readyz"}}}]}}`)
	kubelet, start := n.env.Probe, n.env.Clock.Now()
	since := func() time.Duration { return n.env.Clock.Now().Sub(start) }
	n.env.Probe = func(ctx context.Context, url string) error {
		if url != "https://10.0.0.1:6443/readyz" {
			return kubelet(ctx, url)
		}
		if at := since(); at > 4*time.Second && at < 6*time.Second {
			return errors.New("connection refused")
		}
		return nil
	}
	if err := n.step.Run(t.Context(), n.env); err != nil {
		t.Fatal(err)
	}
	if at := since(); at < 6*time.Second+kubeletSettles || at > time.Minute {
		t.Errorf("ended after %s", at)
	}
}

// A finished upgrade of the kubelet goes back, on a node that is drained for it
// and given back: the programs, and what the old kubelet can read.
func TestRollbackKubelet(t *testing.T) {
	n := newKubeletNode(t)
	n.env.Options.RunID = "r"
	r := Runner{Env: n.env, Plan: []Step{n.step}}
	_, err := r.Work(t.Context())
	must(t, err)
	n.write("/var/lib/kubelet/cpu_manager_state", "new format")
	n.write("/var/lib/kubelet/config.yaml", "kind: KubeletConfiguration\nchanged: since\n")
	r.Env.Bundle = nil
	_, err = r.Rollback(t.Context(), stepKubelet)
	must(t, err)
	got := []string{n.text, n.read("/usr/bin/kubelet"), n.read("/usr/local/bin/kubectl"), n.read("/var/lib/kubelet/cpu_manager_state")}
	if diff := cmp.Diff([]string{oldKubelet, oldKubelet, "kubectl v1.35.4", "old format"}, got); diff != "" {
		t.Error(diff)
	}
	node, err := n.client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
	must(t, err)
	if node.Spec.Unschedulable {
		t.Error("the node stays cordoned")
	}
}
