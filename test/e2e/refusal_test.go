//go:build e2e

package e2e

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/node-upgrader/node-upgrader/test/host"
	"github.com/node-upgrader/node-upgrader/test/payload"
)

// Each refusal ends with the right exit code and a message that names the
// cause, and leaves an unchanged, working node.
func TestRefusals(t *testing.T) {
	t.Parallel()
	p := load(t)
	c, client := up(t, 0)
	cp := c.ControlPlane
	must(t, p.CopyTo(cp))
	must(t, p.ImportImages(t.Context(), cp))
	before := state(t, cp)
	pods := containers(t, client, cp.Name())

	for _, tc := range []struct {
		name    string
		prepare []string // on the node
		program string
		want    []string // in the message
		undo    []string
	}{
		{
			name:    "a corrupt bundle",
			prepare: []string{"sh", "-c", "cp -a /root/upgrade /root/corrupt && printf X | dd of=/root/corrupt/bundle/kubelet/kubelet bs=1 seek=4096 conv=notrunc"},
			program: "/root/corrupt/upgrader",
			want:    []string{"kubelet/kubelet", "sha256"},
			undo:    []string{"rm", "-r", "/root/corrupt"},
		},
		{
			name:    "a jump of two minors",
			prepare: []string{"sh", "-c", "cp -a /root/upgrade /root/far && sed -i 's/v1\\.36\\.3/v1.37.1/' /root/far/bundle/bundle.json"},
			program: "/root/far/upgrader",
			want:    []string{"1.35.4", "1.37.1", "one at a time"},
			undo:    []string{"rm", "-r", "/root/far"},
		},
		{
			name:    "a full disk",
			prepare: []string{"sh", "-c", "mkdir -p /var/lib/upgrader && mount -t tmpfs -o size=100m tmpfs /var/lib/upgrader"},
			program: payload.NodeUpgrader,
			want:    []string{"/var/lib/upgrader", "MiB free"},
			undo:    []string{"sh", "-c", "umount /var/lib/upgrader"},
		},
		{
			name:    "no inodes",
			prepare: []string{"sh", "-c", "mkdir -p /var/lib/upgrader && mount -t tmpfs -o size=8g,nr_inodes=100 tmpfs /var/lib/upgrader"},
			program: payload.NodeUpgrader,
			want:    []string{"/var/lib/upgrader has 99 inodes free"},
			undo:    []string{"umount", "/var/lib/upgrader"},
		},
		{
			name:    "a read-only /usr",
			prepare: []string{"sh", "-c", "mount --bind /usr /usr && mount -o remount,bind,ro /usr"},
			program: payload.NodeUpgrader,
			want:    []string{"/usr is mounted read-only: no writing to /usr/", "/usr/bin/kubelet", "mount -o remount,rw /usr"},
			undo:    []string{"umount", "--lazy", "/usr"},
		},
		{
			name:    "an immutable file",
			prepare: []string{"chattr", "+i", "/etc/kubernetes/manifests/kube-scheduler.yaml", "/usr/bin/kubelet"},
			program: payload.NodeUpgrader,
			want: []string{
				"/etc/kubernetes/manifests/kube-scheduler.yaml is immutable", "/usr/bin/kubelet is immutable",
				"chattr -i /etc/kubernetes/manifests/kube-scheduler.yaml", "chattr -i /usr/bin/kubelet",
			},
			undo: []string{"chattr", "-i", "/etc/kubernetes/manifests/kube-scheduler.yaml", "/usr/bin/kubelet"},
		},
		{
			name: "two kubelets",
			prepare: []string{"sh", "-c", "install /usr/bin/kubelet /usr/local/sbin/kubelet && install -D /bin/sleep /opt/other/kubelet" +
				" && systemd-run --unit=other-kubelet /opt/other/kubelet 3600"},
			program: payload.NodeUpgrader,
			want:    []string{"kubelet.service starts /usr/bin/kubelet, and /usr/local/sbin/kubelet is another one", "runs /opt/other/kubelet"},
			undo:    []string{"sh", "-c", "systemctl stop other-kubelet && rm -r /usr/local/sbin/kubelet /opt/other"},
		},
		{
			name:    "a PodDisruptionBudget that allows nothing",
			prepare: []string{"kubectl", "create", "pdb", "stuck", "--selector=app=workload-cp", "--min-available=1"},
			program: payload.NodeUpgrader,
			want:    []string{"stuck", "workload-cp"},
			undo:    []string{"kubectl", "delete", "pdb", "stuck"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			sh(t, cp, tc.prepare...)
			defer sh(t, cp, tc.undo...)
			if tc.name == "a PodDisruptionBudget that allows nothing" {
				sh(t, cp, "kubectl", "wait", "--for=jsonpath={.status.currentHealthy}=1", "pdb/stuck", "--timeout=60s")
			}
			code, out, stderr := upgrader(t, cp, tc.program, nil, "run", "--ignore-preflight-errors=SystemVerification")
			t.Logf("exit %d\n%s%s", code, out, stderr)
			if code != 3 {
				t.Errorf("exit code %d, want 3", code)
			}
			for _, word := range tc.want {
				if !strings.Contains(stderr, word) {
					t.Errorf("the message does not say %q", word)
				}
			}
		})
	}
	if diff := cmp.Diff(before, state(t, cp)); diff != "" {
		t.Errorf("a refused upgrade changed the node:\n%s", diff)
	}
	if diff := cmp.Diff(pods, containers(t, client, cp.Name())); diff != "" {
		t.Errorf("a refused upgrade touched containers:\n%s", diff)
	}
	must(t, c.Wait(t.Context()))
	allRunning(t, client)
	unschedulable(t, client, cp)
}

// By pod, too, a budget that allows nothing is found before the first change,
// by a container that has the rights to ask for it.
func TestPodRefusedByABudget(t *testing.T) {
	t.Parallel()
	p := load(t)
	c, client := up(t, 0)
	cp := c.ControlPlane
	must(t, p.ImportImages(t.Context(), cp))
	must(t, p.ImportSelf(t.Context(), cp))
	apply(t, c, p, "rbac")
	before, pods := state(t, cp), containers(t, client, cp.Name())
	sh(t, cp, "kubectl", "create", "pdb", "stuck", "--selector=app=workload-cp", "--min-available=1")
	sh(t, cp, "kubectl", "wait", "--for=jsonpath={.status.currentHealthy}=1", "pdb/stuck", "--timeout=60s")

	applyPod(t, c, p, cp.Name(), "refused-1-36")
	name := "upgrader-" + cp.Name()
	ended := func(s corev1.ContainerStatus) *corev1.ContainerStateTerminated {
		if s.State.Terminated != nil {
			return s.State.Terminated
		}
		return s.LastTerminationState.Terminated // it is tried again
	}
	pod := await(t, client, name, 3*time.Minute, func(pod *corev1.Pod) (bool, error) {
		return len(pod.Status.InitContainerStatuses) > 0 && ended(pod.Status.InitContainerStatuses[0]) != nil, nil
	})
	show(t, client, pod)
	for i, s := range pod.Status.InitContainerStatuses {
		end := ended(s)
		switch {
		case i > 0 && (end != nil || s.State.Running != nil):
			t.Errorf("%s ran: %+v", s.Name, s.State)
		case i == 0 && (s.Name != "forecast" || end.ExitCode != 3 || !strings.Contains(end.Message, "stuck")):
			t.Errorf("%s ended with %+v, want forecast with exit code 3 and the budget's name", s.Name, end)
		}
	}
	must(t, client.CoreV1().Pods(namespace).Delete(t.Context(), name, metav1.DeleteOptions{}))
	must(t, wait.PollUntilContextTimeout(t.Context(), time.Second, 2*time.Minute, true, func(ctx context.Context) (bool, error) {
		_, err := client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		return apierrors.IsNotFound(err), nil
	}))
	if diff := cmp.Diff(before, state(t, cp)); diff != "" {
		t.Errorf("a refused upgrade changed the node:\n%s", diff)
	}
	if diff := cmp.Diff(pods, containers(t, client, cp.Name())); diff != "" {
		t.Errorf("a refused upgrade touched containers:\n%s", diff)
	}
	unschedulable(t, client, cp)
}

// state is every file of the host that an upgrade may touch, with content,
// owner and mode, and the services' processes.
func state(t *testing.T, m host.Machine) string {
	t.Helper()
	return sh(t, m, "sh", "-c", `
find /usr/bin/kube* /usr/local/bin /usr/local/sbin /opt/cni/bin /etc/kubernetes /etc/containerd /etc/systemd /etc/default /var/lib/kubelet/config.yaml /var/lib/kubelet/kubeadm-flags.env -type f -printf '%p %m %U:%G ' -exec sha256sum {} \;
find /var/lib/upgrader -type f 2>/dev/null | grep -v -e '/runs/' -e '/\.\?lock$'; systemctl show -p MainPID containerd kubelet`)
}
