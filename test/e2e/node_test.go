//go:build e2e

package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/node-upgrader/node-upgrader/test/cluster"
	"github.com/node-upgrader/node-upgrader/test/components"
	"github.com/node-upgrader/node-upgrader/test/host"
)

// sh runs a command on a node, which has to succeed.
func sh(t *testing.T, m host.Machine, args ...string) string {
	t.Helper()
	r, err := m.Exec(t.Context(), host.Command(args...))
	if err != nil {
		t.Fatalf("%s: %v\n%s%s", m.Name(), err, r.Stdout, r.Stderr)
	}
	return r.Stdout
}

// versions are what runs on a node, asked from what runs.
func versions(t *testing.T, m host.Machine, client kubernetes.Interface) map[string]string {
	t.Helper()
	node, err := client.CoreV1().Nodes().Get(t.Context(), m.Name(), metav1.GetOptions{})
	must(t, err)
	v := map[string]string{
		"kubelet (node)":    node.Status.NodeInfo.KubeletVersion,
		"containerd (node)": node.Status.NodeInfo.ContainerRuntimeVersion,
		"kubeadm":           strings.TrimSpace(sh(t, m, "kubeadm", "version", "-o", "short")),
		"kubelet":           strings.TrimPrefix(strings.TrimSpace(sh(t, m, "kubelet", "--version")), "Kubernetes "),
		"kubectl":           field(sh(t, m, "kubectl", "version", "--client"), 2),
		"containerd":        field(sh(t, m, "containerd", "--version"), 2),
		"runc":              field(sh(t, m, "runc", "--version"), 2),
		"bridge plugin":     field(sh(t, m, "sh", "-c", "/opt/cni/bin/bridge 2>&1 | head -n1"), 3),
		"foreign plugin":    sh(t, m, "cat", cluster.ForeignPlugin),
	}
	pods, err := client.CoreV1().Pods("kube-system").List(t.Context(), metav1.ListOptions{
		LabelSelector: "tier=control-plane", FieldSelector: "spec.nodeName=" + m.Name(),
	})
	must(t, err)
	for _, p := range pods.Items {
		v[p.Labels["component"]] = p.Spec.Containers[0].Image
	}
	return v
}

// target is what versions has to say of a node at the set.
func target(s components.Set, controlPlane bool) map[string]string {
	v := map[string]string{
		"kubelet (node)": "v" + s.Kubernetes, "containerd (node)": "containerd://" + s.Containerd,
		"kubeadm": "v" + s.Kubernetes, "kubelet": "v" + s.Kubernetes, "kubectl": "v" + s.Kubernetes,
		"containerd": "v" + s.Containerd, "runc": s.Runc, "bridge plugin": "v" + s.CNI, "foreign plugin": cluster.ForeignPluginText,
	}
	if controlPlane {
		for _, name := range []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler"} {
			v[name] = "registry.k8s.io/" + name + ":v" + s.Kubernetes
		}
		v["etcd"] = "registry.k8s.io/etcd:" + s.Etcd + "-0"
	}
	return v
}

func atTarget(t *testing.T, m host.Machine, client kubernetes.Interface, s components.Set, controlPlane bool) {
	t.Helper()
	got := versions(t, m, client)
	got["containerd"] = "v" + strings.TrimPrefix(got["containerd"], "v")
	if diff := cmp.Diff(target(s, controlPlane), got); diff != "" {
		t.Errorf("%s is not at the target (-want +got):\n%s", m.Name(), diff)
	}
}

// field is the i-th word, counted from 0, of the text.
func field(text string, i int) string {
	words := strings.Fields(text)
	if i >= len(words) {
		return text
	}
	return words[i]
}

// container identifies one container of one pod.
type container struct{ Pod, Name, ID string }

// containers are the running containers of a node with their restart counts;
// without the upgrader's own pods.
func containers(t *testing.T, client kubernetes.Interface, node string) map[container]int32 {
	t.Helper()
	pods, err := client.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{
		FieldSelector: "spec.nodeName=" + node, LabelSelector: "!node-upgrader.dev/upgrader",
	})
	must(t, err)
	found := map[container]int32{}
	for _, p := range pods.Items {
		for _, c := range p.Status.ContainerStatuses {
			if c.State.Running != nil {
				found[container{p.Namespace + "/" + p.Name, c.Name, c.ContainerID}] = c.RestartCount
			}
		}
	}
	return found
}

// allRunning fails unless every pod of the cluster runs (or has succeeded).
func allRunning(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	pods, err := client.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{})
	must(t, err)
	for _, p := range pods.Items {
		if p.Status.Phase != corev1.PodRunning && p.Status.Phase != corev1.PodSucceeded {
			t.Errorf("pod %s/%s is %s: %s", p.Namespace, p.Name, p.Status.Phase, p.Status.Message)
		}
	}
	if len(pods.Items) == 0 {
		t.Error("no pods at all")
	}
}

// counter is the last count that a node's workload wrote to its data, and
// whether it ever went back.
func counter(t *testing.T, m host.Machine) int {
	t.Helper()
	text := sh(t, m, "sh", "-c", "cat "+cluster.WorkloadData+"/*")
	last := -1
	for line := range strings.Lines(text) {
		n, err := strconv.Atoi(strings.Fields(line)[0])
		if err != nil {
			t.Fatalf("workload's data: %v", err)
		}
		if n < last {
			t.Errorf("%s: the workload's count went back from %d to %d", m.Name(), last, n)
		}
		last = n
	}
	if last < 0 {
		t.Fatalf("%s: the workload wrote nothing", m.Name())
	}
	return last
}

// event is a line of `-o json`.
type event struct {
	Level, Msg, Step, Event string
	Seconds                 float64
}

// upgrader runs the program by hand on a node; on gets each event.
func upgrader(t *testing.T, m host.Machine, program string, on func(event), args ...string) (code int, stdout, stderr string) {
	t.Helper()
	r, w := io.Pipe()
	read := make(chan string)
	go func() {
		var all strings.Builder
		s := bufio.NewScanner(r)
		s.Buffer(nil, 1<<20)
		for s.Scan() {
			fmt.Fprintln(&all, s.Text())
			var e event
			if json.Unmarshal(s.Bytes(), &e) == nil && on != nil {
				on(e)
			}
		}
		read <- all.String()
	}()
	res, err := m.Exec(t.Context(), host.Cmd{Args: append([]string{program}, args...), Stderr: w})
	w.Close()
	stderr = <-read
	var exit *host.ExitError
	if err != nil && !asExit(err, &exit) {
		t.Fatalf("%s %v: %v\n%s", program, args, err, stderr)
	}
	return res.Code, res.Stdout, stderr
}

// missing are the containers of before that after has not, by name.
func missing(before, after map[container]int32) []string {
	var gone []string
	for c := range maps.Keys(before) {
		if _, there := after[c]; !there {
			gone = append(gone, c.Pod+" "+c.Name)
		}
	}
	slices.Sort(gone)
	return gone
}

// awaitReady waits until the node says that it is Ready, and said so after then.
func awaitReady(t *testing.T, client kubernetes.Interface, name string, then time.Time) {
	t.Helper()
	last := "no answer"
	err := wait.PollUntilContextTimeout(t.Context(), 200*time.Millisecond, 3*time.Minute, true, func(ctx context.Context) (bool, error) {
		node, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			last = err.Error()
			return false, nil //nolint:nilerr // away for now
		}
		lease, err := client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, name, metav1.GetOptions{})
		if err != nil || lease.Spec.RenewTime == nil || !lease.Spec.RenewTime.After(then) {
			last = "no heartbeat since"
			return false, nil //nolint:nilerr // away for now
		}
		for _, c := range node.Status.Conditions {
			if c.Type == corev1.NodeReady {
				last = c.Message
				return c.Status == corev1.ConditionTrue, nil
			}
		}
		return false, nil
	})
	if err != nil {
		t.Fatalf("node %s is not Ready: %v: %s", name, err, last)
	}
}
