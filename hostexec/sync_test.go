package hostexec_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

func TestSyncFS(t *testing.T) {
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "file"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	host := hostexec.NewFS(root)
	for _, p := range []string{"/", "/file"} {
		if err := host.SyncFS(p); err != nil {
			t.Errorf("%s: %v", p, err)
		}
	}
	var path *os.PathError
	if err := host.SyncFS("/missing"); !errors.As(err, &path) || path.Path != "/missing" {
		t.Errorf("error %v", err)
	}
}
