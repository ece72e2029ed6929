package steps

import (
	"errors"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Everything that is refused leaves the node as it is.
func TestKubeadmRefuses(t *testing.T) {
	yes := true
	for name, tc := range map[string]struct {
		node   []nodeOption
		before func(*kubeadmNode)
		want   string // in the error
		exit   int
		check  Phase
	}{
		"mixed flags": {
			node: []nodeOption{kubeadmWith(KubeadmOptions{Config: "/etc/upgrade.yaml", EtcdUpgrade: &yes, Patches: "/p"})},
			want: "--config together with --etcd-upgrade, --patches", exit: ExitUsage, check: Blocked,
		},
		"all and others": {
			node: []nodeOption{kubeadmWith(KubeadmOptions{IgnorePreflightErrors: []string{"all", "Swap"}})},
			want: "beside all", exit: ExitUsage, check: Blocked,
		},
		"no patches": {
			node: []nodeOption{kubeadmWith(KubeadmOptions{Patches: "/etc/patches"})},
			want: "--patches /etc/patches is not there", exit: ExitBlocked, check: Blocked,
		},
		"no admin.conf": {
			before: func(n *kubeadmNode) { n.remove(adminConf) },
			want:   "no /etc/kubernetes/admin.conf", exit: ExitBlocked, check: Blocked,
		},
		"etcd has an alarm": {
			before: func(n *kubeadmNode) { n.etcd.nospace() },
			want:   "etcd is not healthy: alarm NOSPACE of member 2a", exit: ExitBlocked, check: Blocked,
		},
		"etcd has no leader": {
			before: func(n *kubeadmNode) {
				n.etcd.status.Leader = 0
				n.etcd.status.Errors = []string{"etcdserver: no leader"}
			},
			want: "no leader", exit: ExitBlocked, check: Blocked,
		},
		"etcd is too old for 3.6": {
			before: func(n *kubeadmNode) { n.etcd.status.Version = "3.5.16" },
			want:   "etcd is 3.5.16", exit: ExitBlocked, check: Blocked,
		},
		"no room for the snapshot": {
			before: func(n *kubeadmNode) { n.etcd.status.DbSize = 1 << 58 },
			want:   "etcd's snapshot needs", exit: ExitBlocked, check: Blocked,
		},
		"the snapshot's stream is damaged": {
			before: func(n *kubeadmNode) { n.etcd.digest = make([]byte, 32) },
			want:   "etcd sent 0000", exit: ExitBlocked, check: Needed,
		},
		"the snapshot's stream is cut off": {
			before: func(n *kubeadmNode) { n.etcd.digest = []byte{} },
			want:   "without its digest", exit: ExitBlocked, check: Needed,
		},
		"the snapshot has a damaged page": {
			before: func(n *kubeadmNode) {
				for i := 4 * 4096; i < 10*4096; i++ {
					n.etcd.db[i] = 0xee
				}
			},
			want: "check etcd's snapshot: the database is damaged", exit: ExitBlocked, check: Needed,
		},
		"the snapshot is not etcd's": {
			before: func(n *kubeadmNode) { n.etcd.db = boltFile(n.t, "other") },
			want:   `no bucket "key"`, exit: ExitBlocked, check: Needed,
		},
		"two manifests are away": {
			before: func(n *kubeadmNode) { n.takeAway(kubeAPIServer); n.takeAway(kubeScheduler) },
			want:   "not an interrupted kubeadm's doing", exit: ExitBlocked, check: Blocked,
		},
		"a manifest is away without a backup": {
			before: func(n *kubeadmNode) { n.remove(manifestPath(kubeScheduler)) },
			want:   "kubeadm kept no backup", exit: ExitBlocked, check: Blocked,
		},
		"the API server is away": {
			before: func(n *kubeadmNode) { n.apiDown = &url.Error{Op: "Get", Err: errors.New("connection refused")} },
			want:   "reach the API server: not after 5m0s", exit: ExitBlocked, check: Needed,
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newKubeadmNode(t, tc.node...)
			if tc.before != nil {
				tc.before(n)
			}
			before := n.tree()
			n.check(tc.check)
			if diff := cmp.Diff(before, n.tree()); diff != "" {
				t.Errorf("check changed the node (-before +after):\n%s", diff)
			}
			err := n.run()
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("error %v, want %q", err, tc.want)
			}
			if got := ExitCode(err); got != tc.exit {
				t.Errorf("exit code %d, want %d", got, tc.exit)
			}
			if len(Hints(err)) == 0 && tc.exit == ExitBlocked {
				t.Error("no hint")
			}
			if ran := n.ranUpgrades(); len(ran) > 0 {
				t.Errorf("was run: %q", ran)
			}
			if diff := cmp.Diff(before, n.tree()); diff != "" {
				t.Errorf("the node was changed (-before +after):\n%s", diff)
			}
		})
	}
}

// tree is every file of the node but for the run's journal.
func (n *kubeadmNode) tree() map[string]string {
	n.t.Helper()
	files := map[string]string{}
	var walk func(dir string)
	walk = func(dir string) {
		entries, err := os.ReadDir(n.path(dir))
		if err != nil {
			n.t.Fatal(err)
		}
		for _, e := range entries {
			p := dir + "/" + e.Name()
			if e.IsDir() {
				walk(p)
			} else {
				files[p] = n.read(p)
			}
		}
	}
	walk("")
	delete(files, n.env.Record.Path(journalFile))
	return files
}
