package steps

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

const applies = "kubeadm upgrade apply v1.36.3 --yes"

// As long as kubeadm has changed nothing, etcd lives on: a week later its state
// of then is not "as it was before", and its health of then is not its health.
func TestSnapshotAgain(t *testing.T) {
	n := newKubeadmNode(t)
	n.commands.On(applies, func(hostexec.Command) (string, error) { return "", errors.New("[ERROR CoreDNS]") })
	if err := n.run(); err == nil {
		t.Fatal("no error")
	}
	first := n.read(n.env.Record.Path(snapshotFile))
	n.now = n.now.Add(7 * 24 * time.Hour)

	n.etcd.nospace()
	if s := n.check(Blocked); !strings.Contains(s.Blocks[0].Reason, "alarm NOSPACE") {
		t.Errorf("blocks: %+v", s.Blocks)
	}
	n.etcd.alarms, n.etcd.status.Errors = nil, nil

	n.etcd.digest = make([]byte, 32)
	if err := n.run(); err == nil || n.read(n.env.Record.Path(snapshotFile)) != first {
		t.Errorf("the last good snapshot is gone; error %v", err)
	}
	n.etcd.digest = nil
	n.etcd.db = boltFile(t, "key", "meta", "cluster", "later")
	n.upgrades(applies)
	if err := n.run(); err != nil {
		t.Fatal(err)
	}
	var kept snapshot
	if _, err := n.env.Record.Load(snapshotRecord, &kept); err != nil {
		t.Fatal(err)
	}
	if got := n.read(kept.File); !strings.HasPrefix(got, string(n.etcd.db)) || !kept.Taken.After(n.now.Add(-time.Hour)) {
		t.Errorf("the snapshot is not of now: %+v", kept)
	}
	if n.read(n.env.Record.Path(snapshotFile)) != "" {
		t.Error("two snapshots")
	}
	if copies, err := kubeadmBackups(n.fs, etcdBackupPrefix); err != nil || len(copies) > 0 {
		t.Errorf("left of kubeadm's copies: %v, %v", copies, err)
	}
}

// Once kubeadm has begun, the snapshot of before stays, in whichever run; the
// copies that kubeadm makes later have what the snapshot has not, and stay too.
func TestSnapshotOfBefore(t *testing.T) {
	n := newKubeadmNode(t)
	early := kubeadmTmpDir + "/kubeadm-backup-etcd-2026-11-21-10-00-00"
	n.commands.On(applies, func(hostexec.Command) (string, error) {
		n.write(early+"/etcd/member/snap/db", "copy", 0o600)
		return "", errors.New("killed")
	})
	if err := n.run(); err == nil {
		t.Fatal("no error")
	}
	snapshot := n.env.Record.Path(snapshotFile)
	before := n.read(snapshot)
	n.env.Record = NewRecord(n.fs, "another")
	n.etcd.db = boltFile(t, "key", "meta", "cluster", "later")
	n.check(Needed)
	n.upgrades(applies)
	if err := n.run(); err != nil {
		t.Fatal(err)
	}
	if n.etcd.snapshots != 1 || n.read(snapshot) != before {
		t.Errorf("%d snapshots taken", n.etcd.snapshots)
	}
	copies, err := kubeadmBackups(n.fs, etcdBackupPrefix)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{early, kubeadmTmpDir + "/kubeadm-backup-etcd-2026-11-21-11-00-00"}, copies); diff != "" {
		t.Errorf("kubeadm's copies (-want +got):\n%s", diff)
	}
	n.check(Done)
}
