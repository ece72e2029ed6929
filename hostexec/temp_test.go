package hostexec

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What a crash has left beside a file goes, the file itself stays.
func TestSweep(t *testing.T) {
	fs := NewFS(t.TempDir())
	for _, p := range []string{"/opt/1.35/kubelet", "/usr/bin/other"} {
		if err := fs.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := fs.WriteFile(t.Context(), p, []byte("old"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := fs.Symlink("/opt/1.35/kubelet", "/usr/bin/kubelet"); err != nil {
		t.Fatal(err)
	}
	if _, err := fs.Prepare(t.Context(), Replacement{Path: "/usr/bin/kubelet", Content: strings.NewReader("new"), Mode: 0o755}); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{"/usr/bin/kubelet", "/usr/bin/kubelet", "/usr/bin/other", "/nowhere/at-all"} {
		if err := fs.Sweep(p); err != nil {
			t.Errorf("%s: %v", p, err)
		}
	}
	for dir, want := range map[string]int{"/opt/1.35": 1, "/usr/bin": 2} {
		if entries, err := os.ReadDir(fs.Root() + dir); err != nil || len(entries) != want {
			t.Errorf("%s: %v, %v", dir, entries, err)
		}
	}
}
