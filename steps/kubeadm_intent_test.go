package steps

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

// A kubeadm that was killed late, with everything at the target to be seen, is
// run again the same way, whichever run comes next; a record of an earlier
// upgrade does not hide it.
func TestKubeadmResumesInAnotherRun(t *testing.T) {
	for name, node := range map[string][]nodeOption{"control plane": nil, "worker": {worker}} {
		t.Run(name, func(t *testing.T) {
			n := newKubeadmNode(t, node...)
			command := "kubeadm upgrade apply v1.36.3 --yes"
			if n.env.Node.Role == Worker {
				command = "kubeadm upgrade node"
			}
			n.upgrades(command)
			if err := n.run(); err != nil {
				t.Fatal(err)
			}
			n.check(Done)
			finished := n.read(upgradedFile)

			n.remove(upgradedFile)
			n.started(intent{Mode: modeApply, Version: newVersion})
			n.commands.On(command, func(hostexec.Command) (string, error) { return "", errors.New("killed") })
			if err := n.run(); err == nil {
				t.Fatal("no error")
			}
			n.write(upgradedFile, finished, 0o600)
			n.env.Record = NewRecord(n.fs, "another")
			n.check(Needed)
			n.upgrades(command)
			if err := n.run(); err != nil {
				t.Fatal(err)
			}
			want := []string{"/usr/bin/" + command, "/usr/bin/" + command, "/usr/bin/" + command}
			if diff := cmp.Diff(want, n.ranUpgrades()); diff != "" {
				t.Errorf("commands (-want +got):\n%s", diff)
			}
			n.check(Done)
			if left := n.read(startedFile); left != "" {
				t.Errorf("left of the intent: %s", left)
			}
		})
	}
}

// What was started and never finished counts also where another version is
// asked for now and everything that can be seen is at it.
func TestKubeadmAnotherVersionUnfinished(t *testing.T) {
	n := newKubeadmNode(t, atTarget, clusterAt(newVersion))
	n.write("/usr/bin/kubeadm", "new kubeadm", 0o755)
	n.check(Done)
	n.started(intent{Mode: modeApply, Version: "v1.36.4"})
	n.check(Needed)
	n.write(startedFile, "{", 0o600)
	if _, err := kubeadmStep().Check(t.Context(), n.env); err == nil || len(Hints(err)) == 0 {
		t.Errorf("a damaged intent: %v, %q", err, Hints(err))
	}
}
