package steps

import (
	"errors"
	"os"
	"path"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/storage/wal"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/node-upgrader/node-upgrader/hostexec"
	"github.com/node-upgrader/node-upgrader/steps/cri"
	"github.com/node-upgrader/node-upgrader/steps/cri/critest"
)

// database is etcd's own, made once.
var database = sync.OnceValues(func() ([]byte, error) { //nolint:gochecknoglobals // made once for all tests
	wal.SegmentSizeBytes = 1 << 20 // many are written
	dir, err := os.MkdirTemp("", "etcd-database-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	return realDatabase(dir)
})

// upgradedNode is a control plane after a finished run, with a snapshot that
// etcd's library can restore.
func upgradedNode(t *testing.T) (n *kubeadmNode, before map[string]string) {
	t.Helper()
	n = newKubeadmNode(t)
	n.kubeletWorks()
	var err error
	if n.etcd.db, err = database(); err != nil {
		t.Fatal(err)
	}
	before = n.host()
	n.upgrades(applies)
	if err := n.run(); err != nil {
		t.Fatal(err)
	}
	n.write(etcdMemberDir+"/snap/db", "written since", 0o600)
	n.runtime.Change(func(s *critest.State) {
		s.Containers = append(s.Containers, cri.Container{ID: "app", Namespace: "default", Pod: "app", Name: "app"})
	})
	return n, before
}

// withoutData takes etcd's data out, which a restore is to change, and the
// restore's own record.
func withoutData(host map[string]string) map[string]string {
	left := map[string]string{}
	for p, v := range host {
		if !strings.HasPrefix(p, etcdMemberDir+"/") {
			left[p] = v
		}
	}
	return left
}

var withEtcd = Options{RestoreEtcd: true} //nolint:gochecknoglobals // a constant

func TestRestoreEtcd(t *testing.T) {
	n, before := upgradedNode(t)
	if blocks := n.undoBlocks(withEtcd); len(blocks) > 0 {
		t.Fatalf("blocked: %+v", blocks)
	}
	for range 2 {
		if err := n.undo(withEtcd, nil); err != nil {
			t.Fatal(err)
		}
		n.restored(before)
	}
	if unit, err := n.env.Host.Units.Show(t.Context(), kubeletUnit); err != nil || unit.ActiveState != "active" {
		t.Errorf("the kubelet is %s, %v", unit.ActiveState, err)
	}
	if !strings.Contains(n.log.String(), "all that was written to the cluster since then is lost") {
		t.Errorf("the loss is not told:\n%s", n.log)
	}
}

// restored fails the test unless the node is as before, runs so, has etcd's data
// of the snapshot, and keeps what was there.
func (n *kubeadmNode) restored(before map[string]string) {
	n.t.Helper()
	if diff := cmp.Diff(withoutData(before), withoutData(n.host())); diff != "" {
		n.t.Errorf("the node is not as it was (-before +after):\n%s", diff)
	}
	if names, err := storedMembers(n.fs, etcdMemberDir+"/snap/db"); err != nil || len(names) != 1 || names[0] != testNode {
		n.t.Errorf("etcd's data has members %v, error %v", names, err)
	}
	if err := up(n.t.Context(), n.env, n.staticPods()); err != nil {
		n.t.Error(err)
	}
	aside, err := names(n.fs, n.env.Record.Path())
	if err != nil {
		n.t.Fatal(err)
	}
	kept := 0
	for _, name := range aside {
		if strings.HasPrefix(name, "member-before-restore-") && n.read(n.env.Record.Path(name, "snap/db")) == "written since" {
			kept++
		}
	}
	if kept != 1 {
		n.t.Errorf("what was written since is not kept: %v", aside)
	}
}

// Where the cluster cannot be put back by this node alone, nothing is touched.
func TestRestoreEtcdRefuses(t *testing.T) {
	for name, tc := range map[string]struct {
		node   []nodeOption
		before func(n *kubeadmNode) // the upgrade
		after  func(n *kubeadmNode) // it
		reason string
		hint   string
	}{
		"two members": {
			after: func(n *kubeadmNode) {
				n.etcd.members = append(n.etcd.members, &etcdserverpb.Member{Name: "node-2"})
			},
			reason: "etcd has 2 members (node-1, node-2)", hint: "https://etcd.io/docs/latest/op-guide/recovery/",
		},
		"external etcd": {
			node:   []nodeOption{externalEtcd},
			reason: "there is no snapshot of etcd: it is no static pod of this node", hint: "https://kubernetes.io/docs/tasks/administer-cluster/configure-upgrade-etcd/#restoring-an-etcd-cluster",
		},
		"a log of its own": {
			before: func(n *kubeadmNode) { n.etcdFlag("--wal-dir=/var/lib/etcd-wal") },
			reason: "--wal-dir=/var/lib/etcd-wal", hint: "etcdutl snapshot restore",
		},
		"the snapshot is damaged": {
			after: func(n *kubeadmNode) {
				file := n.env.Record.Path(snapshotFile)
				n.write(file, strings.Replace(n.read(file), "there", "THERE", 1), 0o600)
			},
			reason: "etcd-snapshot.db is damaged: the stream has sha256", hint: kubeadmTmpDir,
		},
		"the snapshot is another": {
			after: func(n *kubeadmNode) {
				file := n.env.Record.Path(snapshotFile)
				n.write(file, withDigest([]byte(strings.Repeat("x", 512))), 0o600)
			},
			reason: "is not the one that was taken at 2026-11-21 11:00:00 UTC", hint: kubeadmTmpDir,
		},
		"an old image is gone": {
			after:  func(n *kubeadmNode) { n.runtime.Change(forgetImage(imageOf(kubeScheduler, oldVersion))) },
			reason: "the old image registry.k8s.io/kube-scheduler:v1.35.4 is not on the node any more", hint: "ctr -n k8s.io images import",
		},
		"a worker is upgraded": {
			after: func(n *kubeadmNode) {
				if _, err := n.api.CoreV1().Nodes().Create(n.t.Context(), &corev1.Node{
					ObjectMeta: metav1.ObjectMeta{Name: "worker-1"},
					Status:     corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{KubeletVersion: newVersion}},
				}, metav1.CreateOptions{}); err != nil {
					n.t.Fatal(err)
				}
			},
			reason: "node worker-1's kubelet is v1.36.3, newer than the API server would be (v1.35.4)", hint: "upgrader rollback on worker-1",
		},
		"begun by another run": {
			after:  func(n *kubeadmNode) { n.startedBy("runs/older") },
			reason: "kubeadm was started by another run", hint: "upgrader rollback --run-id older --restore-etcd",
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newKubeadmNode(t, tc.node...)
			n.kubeletWorks()
			if n.etcd != nil {
				var err error
				if n.etcd.db, err = database(); err != nil {
					t.Fatal(err)
				}
			}
			if tc.before != nil {
				tc.before(n)
			}
			n.upgrades(applies)
			if err := n.run(); err != nil {
				t.Fatal(err)
			}
			if tc.after != nil {
				tc.after(n)
			}
			before := n.host()
			blocks := n.undoBlocks(withEtcd)
			if len(blocks) != 1 || !strings.Contains(blocks[0].Reason, tc.reason) || !strings.Contains(blocks[0].Hint, tc.hint) {
				t.Errorf("blocks: %+v", blocks)
			}
			err := n.undo(withEtcd, &failsAt{})
			var blocked *BlockedError
			if !errors.As(err, &blocked) || !strings.Contains(err.Error(), tc.reason) {
				t.Errorf("error %v", err)
			}
			if diff := cmp.Diff(before, n.host()); diff != "" {
				t.Errorf("something was changed (-before +after):\n%s", diff)
			}
		})
	}
}

func (n *kubeadmNode) etcdFlag(flag string) {
	n.t.Helper()
	n.write(manifestPath(etcdName), strings.Replace(n.read(manifestPath(etcdName)), "    - --name", "    - "+flag+"\n    - --name", 1), 0o600)
}

func (n *kubeadmNode) startedBy(run string) {
	n.t.Helper()
	n.started(intent{Mode: modeApply, Version: newVersion, Snapshot: &snapshot{File: path.Join(StateDir, run, snapshotFile)}})
}

// While a restore is under way nothing else is done to the control plane.
func TestRestoreEtcdUnderWay(t *testing.T) {
	n, _ := upgradedNode(t)
	if err := n.undo(withEtcd, &failsAt{n: 8}); !errors.Is(err, errCrash) {
		t.Fatal(err)
	}
	want := "a restore of etcd to its state of 2026-11-21 11:00:00 UTC was begun and is not complete"
	s := n.check(Blocked)
	if len(s.Blocks) != 1 || s.Blocks[0].Reason != want || !strings.Contains(s.Blocks[0].Hint, "upgrader rollback --run-id test --restore-etcd") {
		t.Errorf("blocks: %+v", s.Blocks)
	}
	var blocked *BlockedError
	if err := n.run(); !errors.As(err, &blocked) || err.Error() != want {
		t.Errorf("run: %v", err)
	}
	if err := n.undo(Options{}, nil); !errors.As(err, &blocked) || err.Error() != want {
		t.Errorf("rollback without --restore-etcd: %v", err)
	}
	if blocks := n.undoBlocks(Options{}); len(blocks) != 1 || blocks[0].Reason != want {
		t.Errorf("blocks of a rollback: %+v", blocks)
	}
}

// What cannot be unpacked leaves the control plane as it is, and the way open.
func TestRestoreEtcdWithoutRoom(t *testing.T) {
	n, before := upgradedNode(t)
	upgraded := n.host()
	err := n.undo(withEtcd, refuses{op: "restore"})
	if !errors.Is(err, errCrash) {
		t.Fatal(err)
	}
	if diff := cmp.Diff(upgraded, n.host()); diff != "" {
		t.Errorf("something was changed (-before +after):\n%s", diff)
	}
	if starts, stops := n.units().Count(kubeletUnit); starts+stops > 0 {
		t.Error("the kubelet was touched")
	}
	if err := n.undo(withEtcd, nil); err != nil {
		t.Fatal(err)
	}
	n.restored(before)
}

// Whatever fails while the files are exchanged, the kubelet runs afterwards.
func TestRestoreEtcdLeavesTheKubeletRunning(t *testing.T) {
	for _, op := range []string{"remove-pod", hostexec.OpMove, hostexec.OpRemove} {
		n, before := upgradedNode(t)
		if err := n.undo(withEtcd, refuses{op: op}); !errors.Is(err, errCrash) {
			t.Fatalf("%s: %v", op, err)
		}
		if unit, err := n.env.Host.Units.Show(t.Context(), kubeletUnit); err != nil || unit.ActiveState != "active" {
			t.Errorf("%s: the kubelet is %s, %v", op, unit.ActiveState, err)
		}
		n.neverWithout(op)
		if err := n.undo(withEtcd, nil); err != nil {
			t.Fatal(err)
		}
		n.restored(before)
	}
}

// refuses is a watch that refuses one kind of change.
type refuses struct{ op string }

func (r refuses) Before(e hostexec.Effect) error {
	if e.Op == r.op {
		return errCrash
	}
	return nil
}

func (r refuses) After(hostexec.Effect, error) {}
