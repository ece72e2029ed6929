package host

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func inode(t *testing.T, path string) unix.Stat_t {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return st
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestCopyTreeKeepsEverything(t *testing.T) {
	src, dst := t.TempDir(), filepath.Join(t.TempDir(), "copy")
	at := func(name string) string { return filepath.Join(src, name) }
	old := time.Unix(1700000000, 123456789)
	must(t,
		os.WriteFile(at("file"), []byte("text"), 0o600),
		os.Chmod(at("file"), 0o751),
		os.Link(at("file"), at("same")),
		os.Symlink("/nowhere", at("link")),
		os.Mkdir(at("dir"), 0o700),
		os.WriteFile(at("dir/empty"), nil, 0o644),
		os.Chmod(at("dir"), 0o1777),
		unix.Mkfifo(at("fifo"), 0o620),
		unix.Setxattr(at("file"), "user.test", []byte("value"), 0),
		os.Chtimes(at("file"), old, old),
		os.Chtimes(at("dir"), old, old),
	)
	sparse, err := os.Create(at("sparse"))
	must(t, err)
	_, err = sparse.WriteAt([]byte("end"), 64<<20)
	must(t, err, sparse.Truncate(128<<20), sparse.Close())
	root := os.Geteuid() == 0
	if root {
		must(t,
			unix.Mknod(at("whiteout"), unix.S_IFCHR, 0),
			unix.Setxattr(at("dir"), "trusted.overlay.opaque", []byte("y"), 0),
			os.Lchown(at("link"), 12, 34),
		)
	}

	must(t, copyTree(dst, src, nil))

	for _, name := range []string{"file", "link", "dir", "dir/empty", "fifo", "sparse"} {
		a, b := inode(t, at(name)), inode(t, filepath.Join(dst, name))
		if a.Mode != b.Mode || a.Uid != b.Uid || a.Gid != b.Gid || a.Size != b.Size && a.Mode&unix.S_IFMT != unix.S_IFDIR || a.Mtim != b.Mtim {
			t.Errorf("%s: %+v became %+v", name, a, b)
		}
	}
	if inode(t, dst+"/file").Ino != inode(t, dst+"/same").Ino {
		t.Error("two names of one file became two files")
	}
	if inode(t, dst+"/file").Ino == inode(t, at("file")).Ino {
		t.Error("the copy is the source itself")
	}
	if got, _ := os.Readlink(dst + "/link"); got != "/nowhere" {
		t.Errorf("link to %q", got)
	}
	value := make([]byte, 16)
	if n, err := unix.Getxattr(dst+"/file", "user.test", value); err != nil || string(value[:n]) != "value" {
		t.Errorf("attribute %q, %v", value, err)
	}
	if used := inode(t, dst+"/sparse").Blocks * 512; used > 1<<20 {
		t.Errorf("128 MiB of holes take %d bytes", used)
	}
	a, err := os.ReadFile(at("sparse"))
	must(t, err)
	if b, err := os.ReadFile(dst + "/sparse"); err != nil || !bytes.Equal(a, b) {
		t.Errorf("sparse file differs (%v)", err)
	}
	if root {
		if st := inode(t, dst+"/whiteout"); st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != 0 {
			t.Errorf("whiteout became %+v", st)
		}
		if n, err := unix.Getxattr(dst+"/dir", "trusted.overlay.opaque", value); err != nil || string(value[:n]) != "y" {
			t.Errorf("opaque directory: %q, %v", value, err)
		}
	}
}

func TestCopyTreeRefusesAnExistingTarget(t *testing.T) {
	if err := copyTree(t.TempDir(), t.TempDir(), nil); err == nil {
		t.Error("no error")
	}
}

func TestOnlyImmutableFilesAreShared(t *testing.T) {
	src, dst := t.TempDir(), filepath.Join(t.TempDir(), "copy")
	const containerd = "lib/containerd/"
	const layers = containerd + "io.containerd.snapshotter.v1.overlayfs/snapshots/"
	big := strings.Repeat("x", shareFrom)
	for name, want := range map[string]struct {
		text   string
		shared bool
	}{
		containerd + "io.containerd.content.v1.content/blobs/sha256/aa":   {big, true},
		containerd + "io.containerd.content.v1.content/blobs/sha256/bb":   {"small", false},
		containerd + "io.containerd.content.v1.content/ingest/x/data":     {big, false},
		containerd + "io.containerd.metadata.v1.bolt/meta.db":             {big, false},
		layers + "1/fs/usr/bin/etcd":                                      {big, true},
		layers + "1/fs/usr/bin/small":                                     {"small", false},
		layers + "2/fs/var/log/written-by-a-container":                    {big, false},
		layers + "3/fs/no-work-directory":                                 {big, true},
		"lib/etcd/member/snap/db":                                         {big, false},
		"lib/io.containerd.snapshotter.v1.overlayfs/snapshots/1/not-fs/x": {big, false},
	} {
		path := filepath.Join(src, name)
		must(t, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(want.text), 0o644))
		defer func() {
			if shared := inode(t, path).Ino == inode(t, filepath.Join(dst, name)).Ino; shared != want.shared {
				t.Errorf("%s: shared: %v", name, shared)
			}
		}()
	}
	must(t,
		os.MkdirAll(filepath.Join(src, layers, "1/work"), 0o755),
		os.MkdirAll(filepath.Join(src, layers, "2/work/work"), 0o755), // was mounted
	)
	must(t, copyTree(dst, src, immutable))
}
