package steps

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

// interrupted is a node whose kubeadm was killed after it had done this.
func interrupted(t *testing.T, kubeadm func(n *kubeadmNode), options ...nodeOption) *kubeadmNode {
	t.Helper()
	n := newKubeadmNode(t, options...)
	n.kubeletWorks()
	n.commands.On("kubeadm upgrade", func(hostexec.Command) (string, error) {
		kubeadm(n)
		panic("killed") // the upgrader goes with it
	})
	killed(func() { t.Errorf("kubeadm was not killed: %v", n.run()) })
	return n
}

// mendAtBoot is what is done before the kubelet starts: nothing runs, and there
// is no bundle.
func (n *kubeadmNode) mendAtBoot() error {
	n.t.Helper()
	env := n.env
	env.Bundle, env.Runtime, env.Kube, env.Admin, env.Probe = nil, nil, nil, nil, nil
	env.Host.Units, env.Host.Commands, env.Record = nil, nil, Record{}
	return mendBeforeKubelet(n.t.Context(), env)
}

const (
	halfConfig   = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nstaticPodPath: /etc/kuber"
	leftoverFile = manifestsDir + "/kube-apiserver.yaml.bak"
)

// What an interrupted kubeadm leaves of the kubelet's and the API server's files
// is mended before the kubelet starts, and before kubeadm is run again.
func TestKubeadmMendsWhatWasHalfWritten(t *testing.T) {
	for name, tc := range map[string]struct {
		node  []nodeOption
		left  map[string]string // what kubeadm has written
		boot  map[string]string // what of it is to be there at the kubelet's start; "" is the original
		again map[string]string // and before kubeadm runs again, without a boot
	}{
		"the kubelet's configuration ends in a line": {
			left: map[string]string{kubeletConfig: halfConfig},
			boot: map[string]string{kubeletConfig: ""}, again: map[string]string{kubeletConfig: ""},
		},
		"a worker's": {
			node: []nodeOption{worker}, left: map[string]string{kubeletConfig: halfConfig},
			boot: map[string]string{kubeletConfig: ""}, again: map[string]string{kubeletConfig: ""},
		},
		"it is empty": {
			left: map[string]string{kubeletConfig: ""},
			boot: map[string]string{kubeletConfig: ""}, again: map[string]string{kubeletConfig: ""},
		},
		"it is zeros": {
			left: map[string]string{kubeletConfig: strings.Repeat("\x00", 100)},
			boot: map[string]string{kubeletConfig: ""}, again: map[string]string{kubeletConfig: ""},
		},
		"it is whole, and its flags are gone": {
			left:  map[string]string{kubeletConfig: kubeletConfigAt(newVersion), kubeletFlagsFile: "KUBELET_KUBEADM_"},
			boot:  map[string]string{kubeletConfig: "", kubeletFlagsFile: ""},
			again: map[string]string{kubeletConfig: kubeletConfigAt(newVersion), kubeletFlagsFile: "KUBELET_KUBEADM_"},
		},
		"a certificate is empty": {
			left: map[string]string{pkiDir + "/etcd/healthcheck-client.crt": "", pkiDir + "/etcd/healthcheck-client.key": "a new key"},
			boot: map[string]string{pkiDir + "/etcd/healthcheck-client.crt": "", pkiDir + "/etcd/healthcheck-client.key": ""},
			again: map[string]string{
				pkiDir + "/etcd/healthcheck-client.crt": "", pkiDir + "/etcd/healthcheck-client.key": "",
			},
		},
		"a kubeconfig is half": {
			left: map[string]string{kubeletConf: strings.TrimSuffix(kubeletConfTemplate, "\n")},
			boot: map[string]string{kubeletConf: ""}, again: map[string]string{kubeletConf: ""},
		},
		"a manifest is empty": {
			left: map[string]string{manifestPath(etcdName): ""},
			boot: map[string]string{manifestPath(etcdName): ""}, again: map[string]string{manifestPath(etcdName): ""},
		},
		"another's static pod stays": {
			left: map[string]string{manifestsDir + "/haproxy.yaml": "kind: Pod\nmetadata: {name: haproxy}\nspec: {containers: [{name: haproxy}]}\n"},
			boot: map[string]string{manifestsDir + "/haproxy.yaml": "kind: Pod\nmetadata: {name: haproxy}\nspec: {containers: [{name: haproxy}]}\n"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, boots := range []bool{true, false} {
				original := map[string]string{}
				n := interrupted(t, func(n *kubeadmNode) {
					for p, content := range tc.left {
						original[p] = n.read(p)
						n.write(p, content, 0o600)
					}
				}, tc.node...)
				want := tc.boot
				if boots {
					for range 2 {
						if err := n.mendAtBoot(); err != nil {
							t.Fatal(err)
						}
					}
				} else {
					want = tc.again
					// kubeadm is not what is looked at.
					n.commands.On("kubeadm upgrade", func(hostexec.Command) (string, error) { return "", errors.New("not now") })
					if err := n.run(); err == nil || !strings.Contains(err.Error(), "not now") {
						t.Fatal(err)
					}
				}
				for p, content := range want {
					if content == "" {
						content = original[p]
					}
					if got := n.read(p); got != content {
						t.Errorf("boots %v: %s is %q, want %q", boots, p, got, content)
					}
				}
			}
		})
	}
}

// The kubelet takes any file in its directory for a manifest: what an
// interrupted kubeadm, or who looked after it, has left there is moved away.
func TestKubeadmMovesLeftoversAway(t *testing.T) {
	for _, boots := range []bool{true, false} {
		n := interrupted(t, func(n *kubeadmNode) {
			n.write(leftoverFile, "half a manif", 0o600)
			n.write(manifestsDir+"/copy-of-etcd", n.read(manifestPath(etcdName)), 0o600)
			n.write(manifestsDir+"/.hidden.yaml", n.read(manifestPath(etcdName)), 0o600)
			n.write(manifestsDir+"/README", "hands off", 0o600)
		})
		if !boots {
			found := n.check(Needed)
			if !strings.Contains(strings.Join(objects(found.Changes), " "), leftoverFile) {
				t.Errorf("changes: %+v", found.Changes)
			}
		}
		if boots {
			if err := n.mendAtBoot(); err != nil {
				t.Fatal(err)
			}
		} else {
			n.upgrades(applies)
			if err := n.run(); err != nil {
				t.Fatal(err)
			}
		}
		left, err := names(n.fs, manifestsDir)
		if err != nil {
			t.Fatal(err)
		}
		want := []string{".hidden.yaml", "README", "etcd.yaml", "kube-apiserver.yaml", "kube-controller-manager.yaml", "kube-scheduler.yaml"}
		if diff := cmp.Diff(want, left); diff != "" {
			t.Errorf("boots %v: manifests (-want +got):\n%s", boots, diff)
		}
		if n.read(n.env.Record.Path("leftovers/kube-apiserver.yaml.bak")) != "half a manif" || n.read(n.env.Record.Path("leftovers/copy-of-etcd")) == "" {
			t.Error("what was moved away is not kept")
		}
	}
}

func objects(changes []Change) []string {
	var all []string
	for _, c := range changes {
		all = append(all, c.Object)
	}
	return all
}

// Before kubeadm was started they are the administrator's, and in the way.
func TestKubeadmRefusesLeftovers(t *testing.T) {
	n := newKubeadmNode(t)
	n.write(leftoverFile, n.read(manifestPath(kubeAPIServer)), 0o600)
	s := n.check(Blocked)
	if len(s.Blocks) != 1 || !strings.Contains(s.Blocks[0].Reason, leftoverFile) || !strings.Contains(s.Blocks[0].Hint, "mv "+leftoverFile) {
		t.Errorf("blocks: %+v", s.Blocks)
	}
	if err := n.mendAtBoot(); err != nil || n.read(leftoverFile) == "" {
		t.Errorf("moved away at boot; %v", err)
	}
}

// At boot nobody can be asked. What is in doubt stays, and is told; the rest is
// mended.
func TestKubeadmMendsAtBootWhatItCan(t *testing.T) {
	n := interrupted(t, func(n *kubeadmNode) {
		n.remove(manifestPath(kubeScheduler))
		n.write(kubeletConfig, halfConfig, 0o644)
	})
	scheduler := n.read(n.env.Record.Path("backup", manifestPath(kubeScheduler)))
	if err := n.mendAtBoot(); err != nil {
		t.Fatal(err)
	}
	if got := n.read(manifestPath(kubeScheduler)); got != scheduler || got == "" {
		t.Errorf("the scheduler's manifest is %q", got)
	}

	n = interrupted(t, func(n *kubeadmNode) { // somebody has taken two of them away
		n.remove(manifestPath(kubeScheduler))
		n.remove(manifestPath(kubeControllerManager))
		n.write(kubeletConfig, halfConfig, 0o644)
	})
	if err := n.mendAtBoot(); err == nil || !strings.Contains(err.Error(), "it is not the only one") {
		t.Errorf("error %v", err)
	}
	if got := n.read(kubeletConfig); got != kubeletConfigAt(oldVersion) {
		t.Errorf("the kubelet's configuration is %q", got)
	}
}
