package steps

import (
	"os"
	"strings"
	"testing"
)

// The snapshot and kubeadm's copies have to fit together where they share a
// disk, not just each by itself.
func TestEtcdSpaceOnOneDisk(t *testing.T) {
	n := newKubeadmNode(t)
	free, err := n.fs.Free(StateDir)
	if err != nil {
		t.Fatal(err)
	}
	const unit = 1 << 20
	tenth := int64(min(free.Bytes, 1<<40) / 10) //nolint:gosec // below 2^40
	if free.Bytes > 1<<40 || tenth < unit {
		t.Skip("the disk is too large or too full for sparse files to fill it")
	}
	db := n.path("/var/lib/etcd/member/snap/db")
	member := &etcdMember{dataDir: "/var/lib/etcd"}
	for _, tc := range []struct {
		data, size int64
		blocked    bool
	}{
		{data: tenth, size: tenth},
		{data: 0, size: 6 * tenth},
		{data: 2 * tenth, size: 0},
		{data: 2 * tenth, size: 6 * tenth, blocked: true},
	} {
		if err := os.Truncate(db, tc.data); err != nil { // sparse
			t.Fatal(err)
		}
		blocks, err := member.spaceBlocks(n.fs, n.env.Record.Path(), tc.size)
		if err != nil || (len(blocks) > 0) != tc.blocked {
			t.Errorf("%+v: blocks %+v, error %v", tc, blocks, err)
		}
		for _, b := range blocks {
			if !strings.Contains(b.Reason, "etcd's snapshot needs") || !strings.Contains(b.Reason, "and kubeadm's copies of etcd's data need") {
				t.Errorf("reason: %s", b.Reason)
			}
		}
	}
}
