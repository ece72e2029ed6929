package steps

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

// What goes back without the loss of anything: the tree is as it was, and so is
// what runs.
func TestKubeadmUndo(t *testing.T) {
	for name, tc := range map[string]struct {
		node     []nodeOption
		kubeadm  func(n *kubeadmNode) error // what it does
		restarts int
	}{
		"worker, finished": {
			node:     []nodeOption{worker},
			kubeadm:  func(n *kubeadmNode) error { n.write(kubeletConfig, kubeletConfigAt(newVersion), 0o644); return nil },
			restarts: 1,
		},
		"worker, failed": {
			node: []nodeOption{worker},
			kubeadm: func(n *kubeadmNode) error {
				n.write(kubeletFlagsFile, "", 0o644)
				n.write(instanceConfig, "new", 0o644)
				n.write(kubeadmTmpDir+"/kubeadm-kubelet-config-2026-11-21-11-00-00/config.yaml", "old", 0o644)
				return errors.New("[ERROR]")
			},
			restarts: 1,
		},
		"control plane, refused by kubeadm": {
			kubeadm: func(*kubeadmNode) error { return errors.New("[ERROR CoreDNS]") },
		},
		"control plane, put back by kubeadm": {
			kubeadm: func(n *kubeadmNode) error {
				n.write(kubeadmTmpDir+"/kubeadm-backup-manifests-2026-11-21-11-00-00/etcd.yaml", "old", 0o600)
				n.write(apiServerCert, "renewed", 0o644)
				n.write(pkiDir+"/apiserver-kubelet-client.crt", "made", 0o644)
				return errors.New("[ERROR]: the API server did not come up")
			},
		},
		"control plane, put back by kubeadm but for etcd": {
			kubeadm: func(n *kubeadmNode) error {
				n.write(kubeadmTmpDir+"/kubeadm-backup-manifests-2026-11-21-11-00-00/etcd.yaml", "old", 0o600)
				n.upgradeManifest(etcdName, etcdImage(newVersion))
				return errors.New("[ERROR]: the controller-manager did not come up")
			},
		},
		"control plane, etcd's manifest taken away": {
			kubeadm: func(n *kubeadmNode) error { n.remove(manifestPath(etcdName)); return errors.New("[ERROR]") },
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newKubeadmNode(t, tc.node...)
			n.kubeletWorks()
			before := n.host()
			n.commands.On("kubeadm upgrade", func(hostexec.Command) (string, error) {
				err := tc.kubeadm(n)
				return "", errors.Join(err, n.syncPods())
			})
			if err := n.run(); err == nil && strings.Contains(name, "control plane") {
				t.Fatal("kubeadm did not fail")
			}
			if diff := cmp.Diff(before, n.host()); diff == "" {
				t.Fatal("nothing was changed")
			}
			if blocks := n.undoBlocks(Options{}); len(blocks) > 0 {
				t.Errorf("blocked: %+v", blocks)
			}
			for range 2 {
				if err := n.undo(Options{}, nil); err != nil {
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff(before, n.host()); diff != "" {
				t.Errorf("the node is not as it was (-before +after):\n%s", diff)
			}
			if starts, _ := n.units().Count(kubeletUnit); starts != tc.restarts {
				t.Errorf("the kubelet was started %d times, want %d", starts, tc.restarts)
			}
			if n.env.Node.Role == ControlPlane {
				if err := up(t.Context(), n.env, n.staticPods()); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// upgradeManifest puts a manifest with another tag in place.
func (n *kubeadmNode) upgradeManifest(c, tag string) {
	n.t.Helper()
	image := imageOf(c, oldVersion)
	n.write(manifestPath(c), strings.ReplaceAll(n.read(manifestPath(c)), image, image[:strings.LastIndex(image, ":")+1]+tag), 0o600)
}

func (n *kubeadmNode) staticPods() []staticPod {
	n.t.Helper()
	pods, err := staticPods(n.fs)
	if err != nil {
		n.t.Fatal(err)
	}
	return pods
}

// A crash at any change of the undo: the next one brings it to its end.
func TestKubeadmUndoAfterACrash(t *testing.T) {
	points := 0
	for name, options := range map[string][]nodeOption{"worker": {worker}, "control plane": nil} {
		for i := 0; ; i++ {
			n := newKubeadmNode(t, options...)
			n.kubeletWorks()
			before := n.host()
			n.commands.On("kubeadm upgrade", func(hostexec.Command) (string, error) {
				n.write(kubeadmTmpDir+"/kubeadm-backup-manifests-2026-11-21-11-00-00/etcd.yaml", "old", 0o600)
				n.write(kubeletConfig, kubeletConfigAt(newVersion), 0o644)
				if n.env.Node.Role == ControlPlane {
					n.upgradeManifest(etcdName, etcdImage(newVersion))
					n.write(apiServerCert, "renewed", 0o644)
				}
				return "", errors.Join(errors.New("[ERROR]"), n.syncPods())
			})
			if err := n.run(); err == nil {
				t.Fatal("kubeadm did not fail")
			}
			crash := &failsAt{n: i}
			if err := n.undo(Options{}, crash); err == nil {
				if crash.at != "" {
					t.Fatalf("%s: a crash at %s went unseen", name, crash.at)
				}
				break
			}
			points++
			if err := n.undo(Options{}, nil); err != nil {
				t.Fatalf("%s, after a crash at %s: %v", name, crash.at, err)
			}
			if diff := cmp.Diff(before, n.host()); diff != "" {
				t.Errorf("%s, after a crash at %s (-before +after):\n%s", name, crash.at, diff)
			}
			if starts, _ := n.units().Count(kubeletUnit); starts == 0 {
				t.Errorf("%s, after a crash at %s: the kubelet was not started on its old files", name, crash.at)
			}
		}
	}
	if points < 20 {
		t.Errorf("only %d points", points)
	}
}

// What does not go back by its files: nothing is touched, and the error says
// what is left and what to do.
func TestKubeadmUndoIsIrreversible(t *testing.T) {
	for name, tc := range map[string]struct {
		kubeadm func(n *kubeadmNode)
		gone    string // the manifest that is away when it is undone
		says    []string
		hints   []string
	}{
		"finished": {
			says:  []string{"has been upgraded (registry.k8s.io/etcd:3.6.8-0, registry.k8s.io/kube-apiserver:v1.36.3, "},
			hints: []string{"upgrader rollback --run-id test --restore-etcd, which loses all that was written to the cluster since 2026-11-21 11:00:00 UTC"},
		},
		"on its way": {
			kubeadm: func(n *kubeadmNode) {
				n.upgradeManifest(etcdName, etcdImage(newVersion))
				n.upgradeManifest(kubeAPIServer, newVersion)
			},
			gone:  kubeControllerManager,
			says:  []string{"is half upgraded (registry.k8s.io/etcd:3.6.8-0, registry.k8s.io/kube-apiserver:v1.36.3, kube-controller-manager without a manifest)"},
			hints: []string{"run the upgrader again; or upgrader rollback --run-id test --restore-etcd"},
		},
		"etcd at another minor version": {
			kubeadm: func(n *kubeadmNode) { n.upgradeManifest(etcdName, "3.7.0-0") },
			says:    []string{"is half upgraded (registry.k8s.io/etcd:3.7.0-0)"},
			hints:   []string{"--restore-etcd"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newKubeadmNode(t)
			n.upgrades(applies)
			if tc.kubeadm != nil {
				n.commands.On(applies, func(hostexec.Command) (string, error) { tc.kubeadm(n); return "", errors.New("[ERROR]") })
			}
			if err := n.run(); (err != nil) != (tc.kubeadm != nil) {
				t.Fatal(err)
			}
			if tc.gone != "" {
				n.remove(manifestPath(tc.gone))
			}
			before := n.host()
			err := n.undo(Options{}, &failsAt{})
			if err == nil || errors.Is(err, errCrash) {
				t.Fatalf("error %v", err)
			}
			for _, want := range tc.says {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q, want %q", err, want)
				}
			}
			for _, want := range tc.hints {
				if hints := strings.Join(Hints(err), "\n"); !strings.Contains(hints, want) {
					t.Errorf("hints %q, want %q", hints, want)
				}
			}
			if blocks := n.undoBlocks(Options{}); len(blocks) != 1 || blocks[0].Reason != err.Error() {
				t.Errorf("blocks: %+v", blocks)
			}
			if diff := cmp.Diff(before, n.host()); diff != "" {
				t.Errorf("something was changed (-before +after):\n%s", diff)
			}
		})
	}
}

// An image that is to run again has to be on the node.
func TestKubeadmUndoWithoutTheOldImage(t *testing.T) {
	n := newKubeadmNode(t)
	n.commands.On(applies, func(hostexec.Command) (string, error) {
		n.upgradeManifest(etcdName, etcdImage(newVersion))
		return "", errors.New("[ERROR]")
	})
	if err := n.run(); err == nil {
		t.Fatal("kubeadm did not fail")
	}
	n.runtime.Change(forgetImage(imageOf(etcdName, oldVersion)))
	before := n.host()
	err := n.undo(Options{}, nil)
	if err == nil || !strings.Contains(err.Error(), "the old image registry.k8s.io/etcd:3.6.6-0 is not on the node any more") {
		t.Errorf("error %v", err)
	}
	if diff := cmp.Diff(before, n.host()); diff != "" {
		t.Errorf("something was changed (-before +after):\n%s", diff)
	}
}

// A kubeadm that was killed has put nothing back: its step is not rolled back,
// but run again.
func TestKubeadmKilled(t *testing.T) {
	n := newKubeadmNode(t)
	n.commands.On(applies, func(c hostexec.Command) (string, error) {
		return "", &hostexec.CommandError{Argv: c.Argv, Code: -1, Err: errors.New("signal: killed")}
	})
	err := n.run()
	var leave *leaveError
	if !errors.As(err, &leave) || !strings.Contains(strings.Join(Hints(err), " "), "run the upgrader again") {
		t.Errorf("error %v, hints %q", err, Hints(err))
	}
}
