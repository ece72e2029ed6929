//go:build e2e

package e2e

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/node-upgrader/node-upgrader/test/host"
)

// closed checks the receipt of a run that has ended well, and that nothing
// watches over the node any more: no timer, no unit for the next boot.
func closed(t *testing.T, m host.Machine, program, by, bundle string) {
	t.Helper()
	var receipt struct {
		ID, Bundle, By, Outcome string
		Steps                   []struct{ Step, Result string }
		Files                   []struct{ Path, Before, After string }
	}
	text := sh(t, m, program, "status", "--receipt")
	if err := json.Unmarshal([]byte(text), &receipt); err != nil {
		t.Fatalf("receipt: %v\n%s", err, text)
	}
	if receipt.Outcome != "done" || receipt.By != by || receipt.Bundle != bundle {
		t.Errorf("receipt: outcome %q, by %q (want %q), bundle %q (want %q)", receipt.Outcome, receipt.By, by, receipt.Bundle, bundle)
	}
	done := map[string]bool{}
	for _, s := range receipt.Steps {
		done[s.Step] = s.Result == "done"
	}
	for _, step := range []string{"containerd", "cni-plugins", "kubeadm", "drain", "kubelet", "uncordon"} {
		if !done[step] {
			t.Errorf("receipt: %s is not done: %+v", step, receipt.Steps)
		}
	}
	replaced := map[string]bool{}
	for _, f := range receipt.Files {
		replaced[f.Path] = f.Before != f.After && len(f.After) == 64
		if strings.HasPrefix(f.Path, "/var/lib/kubelet/") { // the kubelet goes on writing there
			continue
		}
		if now, _, _ := strings.Cut(sh(t, m, "sh", "-c", "sha256sum "+f.Path+" 2>/dev/null || echo absent"), " "); strings.TrimSpace(now) != f.After {
			t.Errorf("receipt: %s is %s after the run, and now %s", f.Path, f.After, now)
		}
	}
	for _, path := range []string{"/usr/local/bin/containerd", "/usr/local/sbin/runc", "/opt/cni/bin/bridge", "/usr/bin/kubeadm", "/usr/bin/kubelet"} {
		if !replaced[path] {
			t.Errorf("receipt: %s was not replaced", path)
		}
	}
	left := sh(t, m, "sh", "-c", "ls /etc/systemd/system | grep upgrader || true; systemctl list-units --all --no-legend 'upgrader*'")
	if strings.TrimSpace(left) != "" {
		t.Errorf("the run has ended, and this is left:\n%s", left)
	}
}
