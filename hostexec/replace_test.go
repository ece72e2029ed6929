package hostexec_test

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

func TestPrepareChangesNothingYet(t *testing.T) {
	fs, root := tree(t, map[string]string{"/bin/kubelet": "old"})
	prepare := func() *hostexec.Prepared {
		p, err := fs.Prepare(t.Context(), hostexec.Replacement{Path: "/bin/kubelet", Content: strings.NewReader("new"), Mode: 0o755})
		must(t, err)
		return p
	}
	prepare().Discard()
	if diff := cmp.Diff(map[string]string{"kubelet": "old"}, contents(t, root+"/bin")); diff != "" {
		t.Error(diff)
	}
	p := prepare()
	must(t, p.Commit())
	p.Discard()
	if diff := cmp.Diff(map[string]string{"kubelet": "new"}, contents(t, root+"/bin")); diff != "" {
		t.Error(diff)
	}
}

func TestLink(t *testing.T) {
	fs, root := tree(t, map[string]string{"/bin/kubelet": "old", "/kept/kubelet": "older", "/kept/.kubelet.upgrader-tmp": "left by a crash"})
	for range 2 { // the second finds the link there already
		must(t, fs.Link("/bin/kubelet", "/kept/kubelet"))
		if diff := cmp.Diff(map[string]string{"kubelet": "old"}, contents(t, root+"/kept")); diff != "" {
			t.Error(diff)
		}
	}
	must(t, fs.WriteFile(t.Context(), "/bin/kubelet", []byte("new"), 0o755))
	if got, _ := os.ReadFile(root + "/kept/kubelet"); string(got) != "old" {
		t.Errorf("the other name has %q", got)
	}
}

func TestSymlink(t *testing.T) {
	fs, root := tree(t, map[string]string{"/wants/a.service": "-> /old", "/wants/b.service": "a file", "/wants/.c.service.upgrader-tmp": "left by a crash"})
	for _, path := range []string{"/wants/a.service", "/wants/b.service", "/wants/c.service", "/more/wants/d.service"} {
		for range 2 {
			must(t, fs.Symlink("/new/unit", path))
			if text, err := fs.Readlink(path); err != nil || text != "/new/unit" {
				t.Errorf("%s: %s, %v", path, text, err)
			}
		}
	}
	entries, err := os.ReadDir(root + "/wants")
	must(t, err)
	if len(entries) != 3 {
		t.Errorf("left behind: %v", entries)
	}
}
