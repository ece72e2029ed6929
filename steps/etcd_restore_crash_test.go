package steps

import (
	"fmt"
	"path"
	"strings"
	"testing"

	"github.com/node-upgrader/node-upgrader/steps/cri/critest"
)

// A crash at any change of a restore: at no time is there neither etcd's old
// data nor the snapshot's, nor a manifest of etcd without data; the same command
// brings it to its end; and so it does when the machine was started anew and the
// files were mended before its kubelet.
func TestRestoreEtcdAfterACrash(t *testing.T) {
	n, _ := upgradedNode(t)
	all := &failsAt{n: 1 << 30}
	if err := n.undo(withEtcd, all); err != nil {
		t.Fatal(err)
	}
	if all.seen < 30 {
		t.Errorf("only %d points", all.seen)
	}
	for i := range all.seen {
		for _, boots := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d boots %v", i, boots), func(t *testing.T) {
				t.Parallel()
				n, before := upgradedNode(t)
				crash := &failsAt{n: i}
				if err := n.undo(withEtcd, crash); err == nil {
					t.Fatalf("a crash at %s went unseen", crash.at)
				}
				n.neverWithout(crash.at)
				if boots {
					n.boot(crash.at)
				}
				if err := n.undo(withEtcd, nil); err != nil {
					t.Fatalf("after a crash at %s: %v", crash.at, err)
				}
				n.restored(before)
				if t.Failed() {
					t.Logf("after a crash at %s", crash.at)
				}
			})
		}
	}
}

// neverWithout: etcd's data of one state or the other is there, and where etcd's
// manifest is, its data is too.
func (n *kubeadmNode) neverWithout(at string) {
	n.t.Helper()
	var old, restored bool
	dirs, err := names(n.fs, path.Dir(etcdMemberDir))
	if err != nil {
		n.t.Fatal(err)
	}
	for _, d := range append(dirs, "upgrader-restore/member") {
		switch db := n.read(path.Join(path.Dir(etcdMemberDir), d, "snap/db")); {
		case db == "written since":
			old = true
		case db != "":
			restored = true
		}
	}
	kept, err := names(n.fs, n.env.Record.Path())
	if err != nil {
		n.t.Fatal(err)
	}
	for _, d := range kept {
		if !strings.HasPrefix(d, "member-before-restore-") {
			continue
		}
		old = old || n.read(n.env.Record.Path(d, "snap/db")) == "written since"
	}
	member := n.read(etcdMemberDir + "/snap/db")
	if !old || !restored && member != "written since" {
		n.t.Errorf("after a crash at %s: old data %v, restored %v", at, old, restored)
	}
	if n.read(manifestPath(etcdName)) != "" && member == "" {
		n.t.Errorf("after a crash at %s: etcd's manifest is there, and its data is not", at)
	}
}

// boot starts the machine anew: nothing runs, the files are mended, and the
// kubelet starts with them.
func (n *kubeadmNode) boot(at string) {
	n.t.Helper()
	if err := n.units().Stop(n.t.Context(), kubeletUnit); err != nil {
		n.t.Fatal(err)
	}
	n.runtime.Change(func(s *critest.State) { s.Containers = nil })
	env := n.env
	env.Bundle, env.Runtime, env.Kube, env.Admin, env.Probe = nil, nil, nil, nil, nil
	env.Host.Units, env.Host.Commands = nil, nil
	for range 2 {
		if err := mendBeforeKubelet(n.t.Context(), env); err != nil {
			n.t.Fatalf("at boot after a crash at %s: %v", at, err)
		}
	}
	n.neverWithout("boot after " + at)
	if n.read(manifestPath(etcdName)) == "" {
		n.t.Errorf("after a crash at %s and a boot, etcd has no manifest", at)
	}
	if err := n.units().Start(n.t.Context(), kubeletUnit); err != nil {
		n.t.Fatal(err)
	}
}
