//go:build e2e

package e2e

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/node-upgrader/node-upgrader/test/figures"
	"github.com/node-upgrader/node-upgrader/test/host"
	"github.com/node-upgrader/node-upgrader/test/payload"
)

// A whole finished run on a single control plane is rolled back with
// --restore-etcd: every file and every version is as before, what was written
// to the cluster before the upgrade is there and what was written after is not,
// and the cluster works.
func TestRestoreEtcd(t *testing.T) {
	t.Parallel()
	p := load(t)
	c, client := up(t, 0)
	cp := c.ControlPlane
	must(t, p.CopyTo(cp))
	must(t, p.ImportImages(t.Context(), cp))
	before, files := versions(t, cp, client), nodeFiles(t, cp)
	keep(t, client, "before", "old")

	code, _, stderr := upgrader(t, cp, payload.NodeUpgrader, nil, "run", "--ignore-preflight-errors=SystemVerification")
	if code != 0 {
		t.Fatalf("run: exit %d\n%s", code, stderr)
	}
	must(t, c.Wait(t.Context()))
	atTarget(t, cp, client, p.Target.Set, true)
	keep(t, client, "after", "lost")
	keep(t, client, "before", "new")
	revision := newest(t, client)

	code, _, stderr = upgrader(t, cp, payload.NodeUpgrader, nil, "rollback")
	if code != 3 || !strings.Contains(stderr, "--restore-etcd, which loses all that was written to the cluster since") {
		t.Fatalf("a rollback without --restore-etcd: exit %d\n%s", code, stderr)
	}
	atTarget(t, cp, client, p.Target.Set, true)

	start := time.Now()
	code, _, stderr = upgrader(t, cp, payload.NodeUpgrader, nil, "rollback", "--restore-etcd")
	if code != 0 {
		t.Fatalf("rollback: exit %d\n%s", code, stderr)
	}
	t.Logf("rollback:\n%s", stderr)
	record(t, figures.Info("restore_etcd_seconds", time.Since(start).Seconds(), "s"))
	must(t, c.Wait(t.Context()))
	if diff := cmp.Diff(before, versions(t, cp, client)); diff != "" {
		t.Errorf("versions (-before +after):\n%s", diff)
	}
	if diff := cmp.Diff(files, nodeFiles(t, cp)); diff != "" {
		t.Errorf("files (-before +after):\n%s", diff)
	}
	if got := kept(t, client, "before"); got != "old" {
		t.Errorf("what was written before the upgrade is %q", got)
	}
	if got := kept(t, client, "after"); got != "" {
		t.Errorf("what was written after the upgrade is %q", got)
	}
	if now := newest(t, client); now <= revision {
		t.Errorf("the cluster's revision went back from %d to %d", revision, now)
	}
	sh(t, cp, "sh", "-c", "kubectl -n default rollout restart deployment && kubectl -n default rollout status deployment --timeout=120s")
	allRunning(t, client)
	counter(t, cp)
}

// nodeFiles are what a rollback brings back, with owner, mode and digest. The
// kubelet's certificates rotate, and the temporary directory of kubeadm has what
// this cluster's own kubeadm left there.
func nodeFiles(t *testing.T, m host.Machine) string {
	t.Helper()
	return sh(t, m, "sh", "-c", `find /etc/kubernetes /var/lib/kubelet/config.yaml /var/lib/kubelet/kubeadm-flags.env /var/lib/kubelet/instance-config.yaml `+
		`/usr/bin/kube* /usr/local/bin /usr/local/sbin /opt/cni/bin -exec stat -c '%n %U %G %a %F' {} + -type f -exec sha256sum {} + 2>/dev/null | sort`)
}

func keep(t *testing.T, client kubernetes.Interface, name, value string) {
	t.Helper()
	maps := client.CoreV1().ConfigMaps("default")
	c := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"value": value}}
	_, err := maps.Create(t.Context(), c, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		_, err = maps.Update(t.Context(), c, metav1.UpdateOptions{})
	}
	must(t, err)
}

// kept is "" for what is not there.
func kept(t *testing.T, client kubernetes.Interface, name string) string {
	t.Helper()
	c, err := client.CoreV1().ConfigMaps("default").Get(t.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return ""
	}
	must(t, err)
	return c.Data["value"]
}

// newest is the cluster's revision.
func newest(t *testing.T, client kubernetes.Interface) uint64 {
	t.Helper()
	list, err := client.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
	must(t, err)
	n, err := strconv.ParseUint(list.ResourceVersion, 10, 64)
	must(t, err)
	return n
}
