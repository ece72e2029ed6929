package steps

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

func (n *kubeadmNode) check(want Phase) State {
	n.t.Helper()
	s, err := kubeadmStep().Check(n.t.Context(), n.env)
	if err != nil {
		n.t.Fatalf("check: %v", err)
	}
	if s.Phase != want {
		n.t.Fatalf("phase %s, want %s: %+v", s.Phase, want, s)
	}
	if open := n.runtime.Open(); open != 0 {
		n.t.Fatalf("%d connections to the runtime left open", open)
	}
	return s
}

func (n *kubeadmNode) run() error {
	n.t.Helper()
	if err := n.env.Record.Journal().Append(Entry{Event: EventStep, Step: stepKubeadm}); err != nil {
		n.t.Fatal(err)
	}
	return kubeadmStep().Run(n.t.Context(), n.env)
}

// ranUpgrades are the kubeadm upgrade commands that were run.
func (n *kubeadmNode) ranUpgrades() []string {
	var ran []string
	for _, c := range n.commands.Ran {
		if strings.Contains(c, "kubeadm upgrade") {
			ran = append(ran, c)
		}
	}
	return ran
}

func TestKubeadmUpgrade(t *testing.T) {
	no, yes := false, true
	for name, tc := range map[string]struct {
		node    []nodeOption
		before  func(*kubeadmNode)
		command string
	}{
		"first control plane": {command: "kubeadm upgrade apply v1.36.3 --yes"},
		"next control plane":  {node: []nodeOption{clusterAt(newVersion), apiServerAt(newVersion)}, command: "kubeadm upgrade node"},
		"worker":              {node: []nodeOption{worker}, command: "kubeadm upgrade node"},
		"external etcd":       {node: []nodeOption{externalEtcd}, command: "kubeadm upgrade apply v1.36.3 --yes"},
		"apply was interrupted after it had uploaded the configuration": {
			node: []nodeOption{clusterAt(newVersion)},
			before: func(n *kubeadmNode) {
				n.started(intent{Mode: modeApply, Version: newVersion})
			},
			command: "kubeadm upgrade apply v1.36.3 --yes",
		},
		"interrupted with everything at the target": {
			node: []nodeOption{atTarget, clusterAt(newVersion)},
			before: func(n *kubeadmNode) {
				n.started(intent{Mode: modeApply, Version: newVersion})
			},
			command: "kubeadm upgrade apply v1.36.3 --yes",
		},
		"manifests at the target, the cluster is not": {
			node: []nodeOption{atTarget}, command: "kubeadm upgrade apply v1.36.3 --yes",
		},
		"another version was started": {
			node: []nodeOption{clusterAt(newVersion)},
			before: func(n *kubeadmNode) {
				n.started(intent{Mode: modeApply, Version: oldVersion})
			},
			command: "kubeadm upgrade node",
		},
		"flags": {
			node: []nodeOption{kubeadmWith(KubeadmOptions{
				Patches: "/etc/patches", CertificateRenewal: &no, EtcdUpgrade: &yes, IgnorePreflightErrors: []string{"Swap", "NumCPU"},
			})},
			before:  func(n *kubeadmNode) { n.write("/etc/patches/kube-apiserver.yaml", "{}", 0o600) },
			command: "kubeadm upgrade apply v1.36.3 --yes --certificate-renewal=false --etcd-upgrade=true --patches=/etc/patches --ignore-preflight-errors=Swap,NumCPU",
		},
		"configuration": {
			node:    []nodeOption{cordoned, kubeadmWith(KubeadmOptions{Config: "/etc/upgrade.yaml", IgnorePreflightErrors: []string{"Swap"}})},
			before:  func(n *kubeadmNode) { n.write("/etc/upgrade.yaml", "{}", 0o600) },
			command: "kubeadm upgrade apply v1.36.3 --yes --config=/etc/upgrade.yaml --ignore-preflight-errors=Swap",
		},
		"cordoned": {node: []nodeOption{cordoned}, command: "kubeadm upgrade apply v1.36.3 --yes --ignore-preflight-errors=CreateJob"},
		"cordoned, user ignores too": {
			node:    []nodeOption{cordoned, kubeadmWith(KubeadmOptions{IgnorePreflightErrors: []string{"Swap"}})},
			command: "kubeadm upgrade apply v1.36.3 --yes --ignore-preflight-errors=Swap,CreateJob",
		},
		"cordoned, user ignores all": {
			node:    []nodeOption{cordoned, kubeadmWith(KubeadmOptions{IgnorePreflightErrors: []string{"all"}})},
			command: "kubeadm upgrade apply v1.36.3 --yes --ignore-preflight-errors=all",
		},
		"cordoned worker": {node: []nodeOption{worker, cordoned}, command: "kubeadm upgrade node"},
		"the API server's manifest was taken away": {
			before:  func(n *kubeadmNode) { n.takeAway(kubeAPIServer) },
			command: "kubeadm upgrade apply v1.36.3 --yes",
		},
		"the scheduler's manifest is empty after a power cut": {
			before: func(n *kubeadmNode) {
				n.takeAway(kubeScheduler)
				n.write(manifestPath(kubeScheduler), "", 0o600)
			},
			command: "kubeadm upgrade apply v1.36.3 --yes",
		},
		"the kubelet's configuration is half-written": {
			node: []nodeOption{worker},
			before: func(n *kubeadmNode) {
				n.write(kubeadmTmpDir+"/kubeadm-kubelet-config-2026-01-01-00-00-00/config.yaml", kubeletConfigAt(oldVersion), 0o600)
				n.write(kubeletConfig, "apiVersion: kubel", 0o644)
			},
			command: "kubeadm upgrade node",
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newKubeadmNode(t, tc.node...)
			if tc.before != nil {
				tc.before(n)
			}
			n.upgrades(tc.command)
			n.check(Needed)
			if err := n.run(); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]string{"/usr/bin/" + tc.command}, n.ranUpgrades()); diff != "" {
				t.Errorf("commands (-want +got):\n%s", diff)
			}
			if got := n.read("/usr/bin/kubeadm"); got != "new kubeadm" {
				t.Errorf("kubeadm on disk: %s", got)
			}
			n.check(Done)
			// A finished upgrade does nothing again.
			if err := n.run(); err != nil {
				t.Fatal(err)
			}
			if ran := n.ranUpgrades(); len(ran) != 1 {
				t.Errorf("run again: %q", ran)
			}
		})
	}
}

func (n *kubeadmNode) started(i intent) {
	n.t.Helper()
	if err := n.fs.MkdirAll(StateDir, 0o700); err != nil {
		n.t.Fatal(err)
	}
	if err := i.save(n.t.Context(), n.fs); err != nil {
		n.t.Fatal(err)
	}
}

// takeAway leaves the node as a kubeadm killed between its two renames does.
func (n *kubeadmNode) takeAway(component string) {
	n.write(kubeadmTmpDir+"/kubeadm-backup-manifests-2025-01-01-00-00-00/"+component+".yaml", "older", 0o600)
	n.write(kubeadmTmpDir+"/kubeadm-backup-manifests-2026-11-20-00-00-00/"+component+".yaml", n.read(manifestPath(component)), 0o600)
	n.remove(manifestPath(component))
}

func TestKubeadmKeepsWhatItChanges(t *testing.T) {
	n := newKubeadmNode(t)
	n.write(kubeadmTmpDir+"/kubeadm-backup-etcd-2020-01-01-00-00-00/db", "somebody else's", 0o600)
	before := map[string]string{}
	for _, p := range []string{
		"/usr/bin/kubeadm", kubeletConfig, kubeletFlagsFile, kubeletConf, adminConf,
		manifestPath(etcdName), manifestPath(kubeAPIServer), manifestPath(kubeControllerManager), manifestPath(kubeScheduler),
	} {
		before[p] = n.read(p)
	}
	n.upgrades("kubeadm upgrade apply v1.36.3 --yes")
	if err := n.run(); err != nil {
		t.Fatal(err)
	}
	for p, want := range before {
		if got := n.read(n.env.Record.Path("backup", p)); got != want {
			t.Errorf("the original of %s was not kept: %q", p, got)
		}
	}
	if got := n.read(n.env.Record.Path(snapshotFile)); !strings.HasPrefix(got, string(n.etcd.db)) || len(got) != len(n.etcd.db)+32 {
		t.Errorf("the snapshot has %d bytes, the database %d", len(got), len(n.etcd.db))
	}
	copies, err := kubeadmBackups(n.fs, etcdBackupPrefix)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{kubeadmTmpDir + "/kubeadm-backup-etcd-2020-01-01-00-00-00"}, copies); diff != "" {
		t.Errorf("kubeadm's copies (-want +got):\n%s", diff)
	}
	if log := n.read(n.env.Record.Path(kubeadmLog)); !strings.Contains(log, "$ /usr/bin/kubeadm upgrade apply") || !strings.Contains(log, "W1121 a warning") {
		t.Errorf("kubeadm.log: %q", log)
	}
	if !strings.Contains(n.log.String(), `level=INFO msg="[upgrade] SUCCESS!" from=kubeadm`) {
		t.Errorf("kubeadm's lines are not in the log:\n%s", n.log)
	}
}

func TestKubeadmFails(t *testing.T) {
	n := newKubeadmNode(t)
	n.commands.On("kubeadm upgrade apply", func(hostexec.Command) (string, error) {
		n.takeAway(kubeControllerManager)
		return "[upgrade] half\n", errors.New("[ERROR ImagePull]: no such image")
	})
	err := n.run()
	var command *hostexec.CommandError
	if !errors.As(err, &command) || !strings.Contains(err.Error(), "[ERROR ImagePull]") {
		t.Fatalf("error: %v", err)
	}
	if hints := Hints(err); len(hints) != 1 || !strings.Contains(hints[0], n.env.Record.Path(kubeadmLog)) || !strings.Contains(hints[0], snapshotFile) {
		t.Errorf("hints: %q", hints)
	}
	if got := ExitCode(err); got != ExitFailed {
		t.Errorf("exit code %d", got)
	}
	snapshot := n.read(n.env.Record.Path(snapshotFile))
	n.etcd.db = boltFile(t, "key", "meta", "cluster", "later")
	n.etcd.alarms = nil
	n.check(Needed)

	n.upgrades("kubeadm upgrade apply v1.36.3 --yes")
	if err := n.run(); err != nil {
		t.Fatal(err)
	}
	if n.etcd.snapshots != 1 || n.read(n.env.Record.Path(snapshotFile)) != snapshot {
		t.Errorf("the snapshot of before was overwritten (%d taken)", n.etcd.snapshots)
	}
	n.check(Done)
}
