package steps

import (
	"errors"
	"os"
	"testing"
)

// What kubeadm wrote is synced as a whole, certificates and all, before its end
// is recorded: where that is not possible, nothing is.
func TestKubeadmFinishSyncsFirst(t *testing.T) {
	for _, dir := range []string{"/etc/kubernetes", "/var/lib/kubelet"} {
		n := newKubeadmNode(t, worker)
		i := intent{Mode: modeNode, Version: newVersion}
		n.started(i)
		if err := os.RemoveAll(n.path(dir)); err != nil {
			t.Fatal(err)
		}
		if err := finish(t.Context(), n.env, &i, "sha256"); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: error %v", dir, err)
		}
		if n.read(upgradedFile) != "" || n.read(startedFile) == "" {
			t.Errorf("%s: recorded as finished", dir)
		}
	}
}
