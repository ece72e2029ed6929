package steps

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

// A run whose journal cannot be read is shown with what to do about it.
func TestStatusOfDamagedRun(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, runsDir, "r1")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "journal.jsonl"), []byte("no journal\n{}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	run, err := runState(hostexec.NewFS(root), "r1")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(run.Error, "journal.jsonl") || len(run.Hints) == 0 {
		t.Errorf("error %q, hints %q", run.Error, run.Hints)
	}
}
