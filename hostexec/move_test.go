package hostexec_test

import (
	"errors"
	"os"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestMove(t *testing.T) {
	fs, root := tree(t, map[string]string{"/a/member/db": "data", "/b/": "", "/there": "other", "/link": "-> /a"})
	must(t, fs.Move("/link/member", "/b/aside"))
	if diff := cmp.Diff(map[string]string{"db": "data"}, contents(t, root+"/b/aside")); diff != "" {
		t.Error(diff)
	}
	if err := fs.Move("/b/aside", "/there"); !errors.Is(err, os.ErrExist) {
		t.Errorf("over another file: %v", err)
	}
	if err := fs.Move("/a/member", "/c"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what is not there: %v", err)
	}
	if diff := cmp.Diff(map[string]string{"db": "data"}, contents(t, root+"/b/aside")); diff != "" {
		t.Error(diff)
	}
}

func TestOwnAs(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("changing owners needs root; CI runs this as root")
	}
	fs, root := tree(t, map[string]string{"/old/db": "", "/new/snap/db": "", "/new/link": "-> /old/db"})
	must(t, os.Chown(root+"/old", 1234, 4321))
	must(t, os.Chmod(root+"/old", 0o700))
	must(t, fs.OwnAs("/new", "/old"))
	for _, name := range []string{"/new", "/new/snap", "/new/snap/db", "/new/link"} {
		info, err := os.Lstat(root + name)
		must(t, err)
		if st := info.Sys().(*syscall.Stat_t); st.Uid != 1234 || st.Gid != 4321 {
			t.Errorf("%s belongs to %d:%d", name, st.Uid, st.Gid)
		}
		if name == "/new" && info.Mode().Perm() != 0o700 {
			t.Errorf("mode %v", info.Mode())
		}
	}
	info, err := os.Stat(root + "/old/db")
	must(t, err)
	if st := info.Sys().(*syscall.Stat_t); st.Uid != 0 {
		t.Error("a link's target was given away")
	}
}
