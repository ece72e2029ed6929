package hostexec_test

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// file is all that a clone keeps of one.
type file struct {
	Mode         uint32
	UID, GID     uint32
	Atime, Mtime unix.Timespec
	Content      string
	Xattrs       map[string]string
}

func look(t *testing.T, path string) file {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Lstat(path, &st))
	f := file{Mode: st.Mode, UID: st.Uid, GID: st.Gid, Atime: st.Atim, Mtime: st.Mtim, Xattrs: map[string]string{}}
	names := make([]byte, 4096)
	n, err := unix.Llistxattr(path, names)
	must(t, err)
	for _, name := range strings.FieldsFunc(string(names[:n]), func(r rune) bool { return r == 0 }) {
		value := make([]byte, 4096)
		n, err := unix.Lgetxattr(path, name, value)
		must(t, err)
		f.Xattrs[name] = string(value[:n])
	}
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		f.Content, err = os.Readlink(path)
	} else {
		var data []byte
		data, err = os.ReadFile(path)
		f.Content = string(data)
	}
	must(t, err)
	// Looking is to leave no trace.
	must(t, unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{st.Atim, st.Mtim}, unix.AT_SYMLINK_NOFOLLOW))
	return f
}

// words is a value of little-endian words, as the kernel has them.
func words[T uint16 | uint32](w ...T) []byte {
	var b []byte
	for _, v := range w {
		b, _ = binary.Append(b, binary.LittleEndian, v)
	}
	return b
}

func TestCloneKeepsEverything(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("owners and capabilities need root, as the program itself does")
	}
	netRaw := words[uint32](0x02000000|1, 1<<13, 0, 0, 0)
	ping := func(t *testing.T, path string) {
		must(t, os.WriteFile(path, []byte("program"), 0o600))
		must(t, os.Chown(path, 12, 34))
		must(t, unix.Chmod(path, 0o6755))
		must(t, unix.Setxattr(path, "security.capability", netRaw, 0))
		must(t, unix.Setxattr(path, "user.note", []byte("keep me"), 0))
	}
	for _, tc := range []struct {
		name  string
		write func(t *testing.T, path string)
	}{
		{"setuid, capabilities, attributes", ping},
		{"an access list", func(t *testing.T, path string) {
			must(t, os.WriteFile(path, []byte("conf"), 0o640))
			list := words[uint32](2) // version, then tag, permissions and, in two words, id
			for _, e := range [][2]uint16{{0x01, 6}, {0x04, 4}, {0x10, 4}, {0x20, 0}} {
				list = append(list, words(e[0], e[1], 0xffff, 0xffff)...)
				if e[0] == 0x01 {
					list = append(list, append(words[uint16](0x02, 4), words[uint32](77)...)...)
				}
			}
			must(t, unix.Setxattr(path, "system.posix_acl_access", list, 0))
		}},
		{"an empty file without rights", func(t *testing.T, path string) { must(t, os.WriteFile(path, nil, 0o000)) }},
		{"a link to nothing", func(t *testing.T, path string) {
			must(t, os.Symlink("/not/there", path))
			must(t, os.Lchown(path, 12, 34))
			must(t, unix.Lsetxattr(path, "trusted.note", []byte("keep me"), 0))
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			fs, root := tree(t, map[string]string{"/kept/.file.upgrader-tmp": "left by a crash"})
			from := filepath.Join(root, "file")
			tc.write(t, from)
			old := []unix.Timespec{{Sec: 1e9, Nsec: 123456789}, {Sec: 1e9 + 1, Nsec: 987654321}}
			must(t, unix.UtimesNanoAt(unix.AT_FDCWD, from, old, unix.AT_SYMLINK_NOFOLLOW))
			want := look(t, from)
			must(t, fs.Clone(t.Context(), "/file", "/kept/file"))
			if diff := cmp.Diff(want, look(t, from)); diff != "" && want.Mode&unix.S_IFMT == unix.S_IFREG {
				t.Errorf("the original: -want +got:\n%s", diff)
			}
			for range 2 { // over nothing, and once more
				if diff := cmp.Diff(want, look(t, root+"/kept/file")); diff != "" {
					t.Fatalf("-want +got:\n%s", diff)
				}
				must(t, unix.UtimesNanoAt(unix.AT_FDCWD, from, old, unix.AT_SYMLINK_NOFOLLOW))
				must(t, fs.Clone(t.Context(), "/file", "/kept/file"))
			}
			// And back over what somebody else has put there.
			must(t, os.Remove(from))
			ping(t, from)
			must(t, fs.Clone(t.Context(), "/kept/file", "/file"))
			if diff := cmp.Diff(want, look(t, from)); diff != "" {
				t.Errorf("back: -want +got:\n%s", diff)
			}
			entries, err := os.ReadDir(root + "/kept")
			must(t, err)
			if len(entries) != 1 {
				t.Errorf("beside the copy: %v", entries)
			}
		})
	}
}

// A directory's default ACL is not the original's.
func TestCloneTakesNoAccessListFromTheDirectory(t *testing.T) {
	fs, root := tree(t, map[string]string{"/file": "x", "/kept/": ""})
	list := words[uint32](2)
	for _, e := range [][2]uint16{{0x01, 7}, {0x04, 7}, {0x10, 7}, {0x20, 7}} {
		list = append(list, words(e[0], e[1], 0xffff, 0xffff)...)
		if e[0] == 0x01 {
			list = append(list, append(words[uint16](0x02, 7), words[uint32](77)...)...)
		}
	}
	must(t, unix.Setxattr(root+"/kept", "system.posix_acl_default", list, 0))
	must(t, fs.Clone(t.Context(), "/file", "/kept/file"))
	got := look(t, root+"/kept/file")
	if len(got.Xattrs) != 0 || got.Mode&0o777 != 0o644 {
		t.Errorf("mode %o, attributes %q", got.Mode, got.Xattrs)
	}
}

func TestCloneReplacesALinkAndLeavesItsTarget(t *testing.T) {
	fs, root := tree(t, map[string]string{"/file": "new", "/link": "-> /target", "/target": "old"})
	must(t, fs.Clone(t.Context(), "/file", "/link"))
	if diff := cmp.Diff(map[string]string{"file": "new", "link": "new", "target": "old"}, contents(t, root)); diff != "" {
		t.Error(diff)
	}
	if target, err := fs.Target("/link"); err != nil || target != "/link" {
		t.Errorf("leads to %s, %v", target, err)
	}
}

func TestCloneRefusesWhatIsNoFile(t *testing.T) {
	fs, root := tree(t, map[string]string{"/dir/": "", "/file": "keep"})
	must(t, unix.Mkfifo(root+"/fifo", 0o600))
	for _, from := range []string{"/dir", "/fifo", "/not/there"} {
		if err := fs.Clone(t.Context(), from, "/file"); err == nil || strings.Contains(err.Error(), root) {
			t.Errorf("%s: %v", from, err)
		}
	}
	if err := fs.Clone(t.Context(), "/file", "/dir"); err == nil {
		t.Error("a directory was replaced")
	}
	entries, err := os.ReadDir(root)
	must(t, err)
	if len(entries) != 3 {
		t.Errorf("left behind: %v", entries)
	}
}

// A backup that loses what it cannot keep is none.
func TestCloneRefusesWhereAttributesGetLost(t *testing.T) {
	fs, root := tree(t, map[string]string{"/file": "x", "/kept/": ""})
	mount(t, "ramfs", root+"/kept", "ramfs", 0) // has no user's attributes
	must(t, fs.Clone(t.Context(), "/file", "/kept/plain"))
	must(t, unix.Setxattr(root+"/file", "user.note", []byte("keep me"), 0))
	if err := fs.Clone(t.Context(), "/file", "/kept/file"); !errors.Is(err, unix.ENOTSUP) || !strings.Contains(err.Error(), "user.note") {
		t.Errorf("error %v", err)
	}
	entries, err := os.ReadDir(root + "/kept")
	must(t, err)
	if !slices.EqualFunc(entries, []string{"plain"}, func(e os.DirEntry, name string) bool { return e.Name() == name }) {
		t.Errorf("left behind: %v", entries)
	}
}
