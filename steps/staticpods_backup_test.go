package steps

import (
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const backupDir = kubeadmTmpDir + "/kubeadm-backup-manifests-2026-11-20-00-00-00"

// away leaves the node without a manifest, and with a backup of it at v.
func (n *kubeadmNode) away(component, v string) {
	n.write(backupDir+"/"+component+".yaml", strings.ReplaceAll(n.read(manifestPath(component)), imageOf(component, oldVersion), imageOf(component, v)), 0o600)
	n.remove(manifestPath(component))
}

// kubeadm keeps its backups for ever: only what can be told to be of the
// upgrade that was interrupted is put back.
func TestKubeadmWeighsBackups(t *testing.T) {
	down := &url.Error{Op: "Get", Err: errors.New("connection refused")}
	for name, tc := range map[string]struct {
		before func(*kubeadmNode)
		want   string // in the block; "": it is put back
	}{
		"of the version of the others": {before: func(n *kubeadmNode) { n.away(kubeScheduler, oldVersion); n.apiDown = down }},
		"last year's": {
			before: func(n *kubeadmNode) { n.away(kubeScheduler, "v1.34.2") },
			want:   "its image is registry.k8s.io/kube-scheduler:v1.34.2, and the cluster is at v1.35.4",
		},
		"the others are upgraded, the cluster is not": {
			before: func(n *kubeadmNode) {
				n.away(kubeScheduler, oldVersion)
				for _, c := range []string{kubeAPIServer, kubeControllerManager} {
					n.write(manifestPath(c), manifestOf(c, newVersion, n.etcd.url), 0o600)
				}
			},
		},
		"the others are upgraded, the cluster does not answer": {
			before: func(n *kubeadmNode) {
				n.away(kubeScheduler, oldVersion)
				for _, c := range []string{kubeAPIServer, kubeControllerManager} {
					n.write(manifestPath(c), manifestOf(c, newVersion, n.etcd.url), 0o600)
				}
				n.apiDown = down
			},
			want: "the cluster's version is unknown",
		},
		"made since kubeadm was started": {
			before: func(n *kubeadmNode) {
				n.away(kubeScheduler, "v1.34.2")
				n.started(intent{Mode: modeApply, Version: newVersion})
			},
		},
		"there before kubeadm was started": {
			before: func(n *kubeadmNode) {
				n.away(kubeScheduler, "v1.34.2")
				n.started(intent{Mode: modeApply, Version: newVersion, Backups: []string{backupDir}})
			},
			want: "may be an old one",
		},
		"etcd's, by nobody knows whom": {
			before: func(n *kubeadmNode) { n.away(etcdName, oldVersion) },
			want:   "it was made before the upgrader started kubeadm",
		},
		"etcd's, since kubeadm was started": {
			before: func(n *kubeadmNode) {
				n.away(etcdName, oldVersion)
				n.started(intent{Mode: modeApply, Version: newVersion})
			},
		},
		"etcd's, as kubeadm left it last": {
			before: func(n *kubeadmNode) {
				n.away(etcdName, oldVersion)
				n.write(upgradedFile, `{"schema":1,"version":"v1.35.4","images":{"etcd":"`+imageOf(etcdName, oldVersion)+`"}}`, 0o600)
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newKubeadmNode(t)
			tc.before(n)
			before := n.tree()
			lost, err := lostFiles(t.Context(), n.env)
			if err != nil || len(lost) != 1 {
				t.Fatalf("lost %+v, error %v", lost, err)
			}
			err = mend(t.Context(), n.env, lost)
			if tc.want == "" {
				if err != nil || n.read(lost[0].path) != n.read(lost[0].backup) {
					t.Errorf("was not put back: %v", err)
				}
				return
			}
			if ExitCode(err) != ExitBlocked || !strings.Contains(err.Error(), tc.want) || !strings.Contains(strings.Join(Hints(err), ""), "cp "+backupDir) {
				t.Errorf("error %v, hints %q", err, Hints(err))
			}
			if diff := cmp.Diff(before, n.tree()); diff != "" {
				t.Errorf("the node was changed (-before +after):\n%s", diff)
			}
			n.check(Blocked)
		})
	}
}
