package steps

import (
	"errors"
	"strings"
	"testing"
)

// Once a lost file was put back, or kubeadm was started, "nothing was changed"
// is not true any more of what blocks.
func TestKubeadmBlockedAfterAChange(t *testing.T) {
	for name, before := range map[string]func(*kubeadmNode){
		"a manifest was put back": func(n *kubeadmNode) { n.takeAway(kubeScheduler) },
		"kubeadm was started":     func(n *kubeadmNode) { n.started(intent{Mode: modeApply, Version: newVersion}) },
	} {
		t.Run(name, func(t *testing.T) {
			n := newKubeadmNode(t)
			n.remove(adminConf)
			before(n)
			err := n.run()
			var blocked *BlockedError
			if errors.As(err, &blocked) || ExitCode(err) != ExitFailed || !strings.Contains(err.Error(), "no /etc/kubernetes/admin.conf") {
				t.Errorf("error %v (exit code %d)", err, ExitCode(err))
			}
			if hints := Hints(err); len(hints) != 1 || !strings.Contains(hints[0], "kubeadm init phase kubeconfig admin") {
				t.Errorf("hints: %q", hints)
			}
		})
	}
}
