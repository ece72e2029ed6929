//go:build e2e && e2e_vm

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/node-upgrader/node-upgrader/test/cache"
	"github.com/node-upgrader/node-upgrader/test/cluster"
	"github.com/node-upgrader/node-upgrader/test/figures"
	"github.com/node-upgrader/node-upgrader/test/host"
	"github.com/node-upgrader/node-upgrader/test/payload"
	"github.com/node-upgrader/node-upgrader/test/uml"
)

// A whole upgrade of a control plane on a kernel of its own: cgroup v2 and the
// systemd cgroup driver.
func TestVirtualMachine(t *testing.T) {
	p := load(t)
	s, err := cluster.NewStandalone(t.Context(), from, lines{t})
	must(t, err)
	m, err := uml.New(uml.Spec{Name: s.Name(), IP: s.IP(), From: filepath.Join(vmCluster(t, s), "disk"), Memory: vmMemory})
	must(t, err)
	t.Cleanup(func() { must(t, m.Close()) })
	start := time.Now()
	must(t, m.Boot(t.Context()))
	c := s.Cluster(m, m.DialContext)
	must(t, c.WaitFresh(t.Context(), start, 15*time.Minute))
	t.Logf("cluster up in %.0f s", time.Since(start).Seconds())
	client, err := c.Client()
	must(t, err)
	if driver := sh(t, m, "grep", "cgroupDriver", "/var/lib/kubelet/config.yaml"); !strings.Contains(driver, "systemd") {
		t.Errorf("the kubelet's configuration: %s", driver)
	}
	if kind := sh(t, m, "stat", "-fc", "%T", "/sys/fs/cgroup"); !strings.Contains(kind, "cgroup2fs") {
		t.Errorf("/sys/fs/cgroup is %s", kind)
	}
	must(t, p.CopyTo(m))
	must(t, p.ImportImages(t.Context(), m))
	before := containers(t, client, m.Name())
	count := counter(t, m)

	start = time.Now()
	code, _, stderr := upgrader(t, m, payload.NodeUpgrader, func(e event) {
		switch {
		case e.Event == "end":
			t.Logf("%s: %.0f s", e.Step, e.Seconds)
		case e.Event == "start" && e.Step == "cni-plugins":
			gone := slices.DeleteFunc(missing(before, containers(t, client, m.Name())), endsItself)
			if len(gone) > 0 {
				t.Errorf("containers that did not survive containerd's upgrade: %v", gone)
			}
		}
	}, "run", "-o", "json", "--ignore-preflight-errors=SystemVerification")
	if code != 0 {
		t.Fatalf("run: exit %d\n%s", code, stderr)
	}
	record(t, figures.Info("vm_upgrade_seconds", time.Since(start).Seconds(), "s"))
	must(t, c.WaitFresh(t.Context(), time.Time{}, 15*time.Minute))
	atTarget(t, m, client, p.Target.Set, true)
	allRunning(t, client)
	if now := counter(t, m); now <= count {
		t.Errorf("the workload counted %d before and %d after", count, now)
	}
}

const vmMemory = 4096

// vmCluster is a directory with the snapshot of a control plane at the old
// version, made once in about ten minutes.
func vmCluster(t *testing.T, s cluster.Standalone) string {
	t.Helper()
	layer, err := s.Layer(t.Context())
	must(t, err)
	image, err := uml.Image(t.Context(), lines{t}, layer)
	must(t, err)
	archives, err := s.Archives()
	must(t, err)
	key := strings.Join(append([]string{image, s.Key()}, archives...), "\n")
	if dir := cache.Path("uml-cluster", key); cluster.Expired(dir) {
		must(t, os.RemoveAll(dir))
	}
	dir, err := cache.DirContext(t.Context(), "uml-cluster", key, func(tmp string) error {
		m, err := uml.New(uml.Spec{Name: s.Name(), IP: s.IP(), Image: image, Memory: vmMemory})
		if err != nil {
			return err
		}
		defer m.Close()
		if err := makeCluster(t, m, s, archives); err != nil {
			return err
		}
		if err := m.PowerOff(t.Context()); err != nil {
			return err
		}
		return m.Snapshot(filepath.Join(tmp, "disk"))
	})
	must(t, err)
	return dir
}

func makeCluster(t *testing.T, m *uml.Machine, s cluster.Standalone, archives []string) error {
	t.Helper()
	if err := m.Boot(t.Context()); err != nil {
		return err
	}
	start := time.Now()
	for _, archive := range archives {
		if err := importArchive(t.Context(), m, archive); err != nil {
			return err
		}
	}
	t.Logf("%d images imported in %.0f s", len(archives), time.Since(start).Seconds())
	start = time.Now()
	if err := s.Initialise(t.Context(), s.Cluster(m, m.DialContext)); err != nil {
		return fmt.Errorf("%w\nkubelet: %s", err, sh(t, m, "journalctl", "-u", "kubelet", "-n", "20", "--no-pager"))
	}
	t.Logf("kubeadm init and workload in %.0f s", time.Since(start).Seconds())
	return nil
}

func importArchive(ctx context.Context, m host.Machine, archive string) error {
	const there = "/var/tmp/image.tar"
	if err := m.CopyIn(archive, there); err != nil {
		return err
	}
	_, err := m.Exec(ctx, host.Command("sh", "-ec", "ctr -n k8s.io images import "+there+"; rm "+there))
	return err
}

// endsItself tells of the containers that end when they cannot renew their lease
// for ten seconds, as on a machine as slow as this one.
func endsItself(container string) bool {
	return strings.HasSuffix(container, " kube-scheduler") || strings.HasSuffix(container, " kube-controller-manager")
}
