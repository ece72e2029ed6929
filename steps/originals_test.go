package steps

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// onDisk is what a rollback has to bring back of a file.
type onDisk struct {
	Mode     fs.FileMode
	UID, GID uint32
	Mtime    time.Time
	Content  string // or the link's text
	Note     string // an extended attribute
}

// everything is every file below a directory, links as links.
func everything(t *testing.T, dir string) map[string]onDisk {
	t.Helper()
	files := map[string]onDisk{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		st := info.Sys().(*syscall.Stat_t)
		f := onDisk{Mode: info.Mode(), UID: st.Uid, GID: st.Gid, Mtime: info.ModTime()}
		note := make([]byte, 64)
		if n, err := unix.Lgetxattr(path, "trusted.note", note); err == nil {
			f.Note = string(note[:n])
		}
		data, err := os.ReadFile(path)
		if d.Type()&fs.ModeSymlink != 0 {
			var text string
			text, err = os.Readlink(path)
			data = []byte(text)
		}
		f.Content = string(data)
		files[path] = f
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// Whatever a component does to the files that were kept, they come back as they
// were, links and absent files included.
func TestOriginalsComeBackAsTheyWere(t *testing.T) {
	const file = "/etc/kubernetes/kubelet.conf"
	plain := func(t *testing.T, path string) {
		t.Helper()
		err := errors.Join(os.WriteFile(path, []byte("original"), 0o600), os.Chown(path, 12, 34), os.Chmod(path, 0o640|fs.ModeSetgid),
			unix.Setxattr(path, "trusted.note", []byte("keep me"), 0), os.Chtimes(path, time.Time{}, time.Unix(1e9, 42)))
		if err != nil {
			t.Fatal(err)
		}
	}
	link := func(to string) func(*testing.T, string) {
		return func(t *testing.T, path string) {
			t.Helper()
			ts := []unix.Timespec{{Sec: 1e9}, {Sec: 1e9, Nsec: 7}}
			err := errors.Join(os.Symlink(to, path), os.Lchown(path, 12, 34),
				unix.Lsetxattr(path, "trusted.note", []byte("a link's"), 0), unix.UtimesNanoAt(unix.AT_FDCWD, path, ts, unix.AT_SYMLINK_NOFOLLOW))
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	before := map[string]func(*testing.T, string){
		"a file": plain,
		"a link": func(t *testing.T, path string) {
			plain(t, filepath.Join(filepath.Dir(path), "target"))
			link("target")(t, path)
		},
		"a link to nothing": link("nothing"),
		"nothing":           func(*testing.T, string) {},
	}
	meanwhile := map[string]func(path string) error{
		"untouched": func(string) error { return nil },
		"rewritten": func(path string) error { return os.WriteFile(path, []byte("new"), 0o600) },
		"replaced": func(path string) error {
			return errors.Join(os.WriteFile(path+"~", []byte("new"), 0o644), os.Rename(path+"~", path))
		},
		"removed": func(path string) error { _ = os.Remove(path); return nil },
		"a link elsewhere": func(path string) error {
			_ = os.Remove(path)
			return errors.Join(os.WriteFile(path+".other", []byte("new"), 0o644), os.Symlink(path+".other", path), os.Remove(path+".other"))
		},
	}
	for was, make := range before {
		for what, change := range meanwhile {
			t.Run(was+", "+what, func(t *testing.T) {
				n := newKubeletNode(t)
				path := filepath.Join(n.root, file)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				make(t, path)
				want := everything(t, filepath.Dir(path))
				if err := backup(t.Context(), n.env, file); err != nil {
					t.Fatal(err)
				}
				if err := change(path); err != nil {
					t.Fatal(err)
				}
				for range 2 { // it can be repeated
					if err := restore(t.Context(), n.env, file); err != nil {
						t.Fatal(err)
					}
					if diff := cmp.Diff(want, everything(t, filepath.Dir(path))); diff != "" {
						t.Errorf("-want +got:\n%s", diff)
					}
				}
			})
		}
	}
}
