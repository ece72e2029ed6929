//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/node-upgrader/node-upgrader/test/cluster"
	"github.com/node-upgrader/node-upgrader/test/figures"
	"github.com/node-upgrader/node-upgrader/test/host"
	"github.com/node-upgrader/node-upgrader/test/payload"
)

const namespace = "node-upgrader"

// apply hands what the program's manifests command prints to kubectl.
func apply(t *testing.T, c *cluster.Cluster, p payload.Payload, args ...string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), p.Upgrader, append([]string{"manifests"}, args...)...).Output()
	if err != nil {
		var exit *exec.ExitError
		errors.As(err, &exit)
		t.Fatalf("manifests %v: %v\n%s", args, err, exit.Stderr)
	}
	var last error
	err = wait.PollUntilContextTimeout(t.Context(), time.Second, 2*time.Minute, true, func(ctx context.Context) (bool, error) {
		_, last = c.ControlPlane.Exec(ctx, host.Cmd{Args: []string{"kubectl", "apply", "-f", "-"}, Stdin: strings.NewReader(string(out))})
		return last == nil, nil
	})
	if err != nil {
		t.Fatalf("apply: %v: %v", err, last)
	}
}

func applyPod(t *testing.T, c *cluster.Cluster, p payload.Payload, node, runID string) {
	t.Helper()
	apply(t, c, p, "pod", "--node", node, "--image", p.Ref, "--image-pull-policy=Never", "--run-id", runID,
		"--ignore-preflight-errors=SystemVerification")
}

// await waits until the pod is as wanted; the API server may be away.
func await(t *testing.T, client kubernetes.Interface, name string, within time.Duration, wanted func(*corev1.Pod) (bool, error)) *corev1.Pod {
	t.Helper()
	var pod *corev1.Pod
	err := wait.PollUntilContextTimeout(t.Context(), time.Second, within, true, func(ctx context.Context) (bool, error) {
		got, err := client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, nil //nolint:nilerr // away for now
		}
		pod = got
		return wanted(got)
	})
	if err != nil {
		t.Errorf("pod %s: %v", name, err)
		show(t, client, pod)
		t.FailNow()
	}
	return pod
}

func succeeded(p *corev1.Pod) (bool, error) {
	if p.Status.Phase == corev1.PodFailed {
		return false, errors.New("the pod failed")
	}
	return p.Status.Phase == corev1.PodSucceeded, nil
}

// show logs each container's state and log.
func show(t *testing.T, client kubernetes.Interface, pod *corev1.Pod) {
	t.Helper()
	if pod == nil {
		return
	}
	for _, s := range append(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses...) {
		logs, err := client.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{Container: s.Name}).DoRaw(context.Background())
		t.Logf("%s: restarts %d, %+v, %v\n%s", s.Name, s.RestartCount, s.State, err, logs)
	}
}

// stepSeconds are the times of the pod's init containers.
func stepSeconds(t *testing.T, prefix string, pod *corev1.Pod) {
	t.Helper()
	for _, s := range pod.Status.InitContainerStatuses {
		if s.State.Terminated == nil {
			t.Errorf("%s: %+v", s.Name, s.State)
			continue
		}
		took := s.State.Terminated.FinishedAt.Sub(s.State.Terminated.StartedAt.Time)
		record(t, figures.Info(fmt.Sprintf("%s_%s_seconds", prefix, strings.ReplaceAll(s.Name, "-", "_")), took.Seconds(), "s"))
		if !strings.Contains(s.State.Terminated.Message, `"exit":0`) {
			t.Errorf("%s: termination message %q is no result", s.Name, s.State.Terminated.Message)
		}
	}
}

// The pod's way: the control plane, and then a worker joined to it, which has
// no administrator's credentials.
func TestPodControlPlaneThenWorker(t *testing.T) {
	t.Parallel()
	p := load(t)
	c, client := up(t, 1)
	for _, m := range c.Nodes() {
		must(t, p.ImportImages(t.Context(), m))
		must(t, p.ImportSelf(t.Context(), m))
	}
	if _, err := c.Worker.ReadFile("/etc/kubernetes/admin.conf"); err == nil {
		t.Fatal("the worker has an admin kubeconfig")
	}
	apply(t, c, p, "rbac")
	count := counter(t, c.Worker)
	for _, m := range c.Nodes() {
		before := containers(t, client, m.Name())
		applyPod(t, c, p, m.Name(), "pods-1-36")
		await(t, client, "upgrader-"+m.Name(), 10*time.Minute, func(pod *corev1.Pod) (bool, error) {
			for _, s := range pod.Status.InitContainerStatuses {
				if s.Name == "containerd" && s.State.Terminated != nil {
					if gone := missing(before, containers(t, client, m.Name())); len(gone) > 0 && pod.Status.InitContainerStatuses[4].State.Waiting != nil {
						return false, fmt.Errorf("containers that did not survive containerd's upgrade: %v", gone)
					}
					return true, nil
				}
			}
			return false, nil
		})
		pod := await(t, client, "upgrader-"+m.Name(), 15*time.Minute, succeeded)
		show(t, client, pod)
		stepSeconds(t, "pod_"+m.Name(), pod)
		must(t, c.Wait(t.Context()))
		atTarget(t, m, client, p.Target.Set, m == c.ControlPlane)
		staged := "/var/lib/upgrader/bundles/" + strings.TrimPrefix(p.Digest, "sha256:") + "/upgrader"
		closed(t, m, staged, "pod "+namespace+"/upgrader-"+m.Name(), p.Digest)
	}
	allRunning(t, client)
	if now := counter(t, c.Worker); now <= count {
		t.Errorf("the worker's workload counted %d before and %d after", count, now)
	}
	unschedulable(t, client, c.Nodes()...)
}

func unschedulable(t *testing.T, client kubernetes.Interface, nodes ...host.Machine) {
	t.Helper()
	for _, m := range nodes {
		node, err := client.CoreV1().Nodes().Get(t.Context(), m.Name(), metav1.GetOptions{})
		must(t, err)
		if node.Spec.Unschedulable || strings.Contains(fmt.Sprint(node.Annotations), "node-upgrader.dev/cordoned") {
			t.Errorf("%s was left cordoned: %v", m.Name(), node.Annotations)
		}
	}
}

// The pod is deleted while kubeadm works on the control plane, and created
// again: the work goes on in between, and ends well.
func TestPodDeletedInTheMiddle(t *testing.T) {
	t.Parallel()
	p := load(t)
	c, client := up(t, 0)
	cp := c.ControlPlane
	must(t, p.ImportImages(t.Context(), cp))
	must(t, p.ImportSelf(t.Context(), cp))
	apply(t, c, p, "rbac")
	applyPod(t, c, p, cp.Name(), "deleted-1-36")
	name := "upgrader-" + cp.Name()
	await(t, client, name, 10*time.Minute, func(pod *corev1.Pod) (bool, error) {
		for _, s := range pod.Status.InitContainerStatuses {
			if s.Name == "kubeadm" && s.State.Running != nil {
				return true, nil
			}
		}
		return false, nil
	})
	err := wait.PollUntilContextTimeout(t.Context(), time.Second, time.Minute, true, func(context.Context) (bool, error) {
		return strings.Contains(sh(t, cp, "sh", "-c", "pgrep -a kubeadm || true"), "kubeadm upgrade apply"), nil
	})
	must(t, err)
	kubeadm := sh(t, cp, "pgrep", "-f", "^/usr/bin/kubeadm upgrade apply")
	must(t, client.CoreV1().Pods(namespace).Delete(t.Context(), name, metav1.DeleteOptions{}))
	err = wait.PollUntilContextTimeout(t.Context(), time.Second, 5*time.Minute, true, func(ctx context.Context) (bool, error) {
		_, err := client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		return apierrors.IsNotFound(err), nil
	})
	must(t, err)
	if now := sh(t, cp, "sh", "-c", "pgrep -f '^/usr/bin/kubeadm upgrade apply' || true"); now != kubeadm {
		t.Errorf("the pod is gone, and kubeadm with it: process %q, then %q", kubeadm, now)
	}
	applyPod(t, c, p, cp.Name(), "deleted-1-36")
	pod := await(t, client, name, 15*time.Minute, succeeded)
	show(t, client, pod)
	must(t, c.Wait(t.Context()))
	atTarget(t, cp, client, p.Target.Set, true)
	allRunning(t, client)
	unschedulable(t, client, cp)
}
