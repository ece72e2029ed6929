package archive

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

type entry struct {
	name string
	kind byte
	body string
}

func pack(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Typeflag: e.kind, Mode: 0o4777, Size: int64(len(e.body)), Linkname: "/etc/passwd"}
		if e.kind == tar.TypeReg || e.kind == tar.TypeDir {
			h.Linkname = ""
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(e.body)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestExtract(t *testing.T) {
	const file, dir = tar.TypeReg, tar.TypeDir
	ctr := entry{"bin/ctr", file, "ctr"}
	good := pack(t, entry{"bin/", dir, ""}, ctr, entry{"bin/containerd", file, "containerd"}, entry{"bin/stress", file, "x"}, entry{"ctr", file, "no"})
	bomb := pack(t, ctr, entry{"bin/zeroes", file, strings.Repeat("\x00", 3<<20)})
	many := make([]entry, 60)
	for i := range many {
		many[i] = entry{"x", file, ""}
	}
	tests := []struct {
		name string
		data []byte
		from string
		want string // part of the error; "": unpacked
	}{
		{"good", good, "bin", ""},
		{"at the top", pack(t, entry{"./", dir, ""}, entry{"./ctr", file, "ctr"}, entry{"./containerd", file, "containerd"}, entry{"./LICENSE", file, "x"}), ".", ""},
		{"climbs", pack(t, entry{"../bin/ctr", file, "x"}), "bin", `"../bin/ctr" is not a clean path`},
		{"climbs and is not wanted", pack(t, ctr, entry{"bin/../../x", file, "x"}), "bin", "not a clean path"},
		{"absolute", pack(t, entry{"/bin/ctr", file, "x"}), "bin", "not a clean path"},
		{"directory that climbs", pack(t, entry{"bin/../..", dir, ""}), "bin", "not a clean path"},
		{"no name", pack(t, entry{"", file, "x"}), ".", "not a clean path"},
		{"symbolic link", pack(t, entry{"bin/ctr", tar.TypeSymlink, ""}), "bin", "neither a file"},
		{"a directory that is a link", pack(t, entry{"bin", tar.TypeSymlink, ""}, ctr), "bin", "neither a file"},
		{"hard link", pack(t, entry{"bin/ctr", tar.TypeLink, ""}), "bin", "neither a file"},
		{"device", pack(t, entry{"bin/ctr", tar.TypeChar, ""}), "bin", "neither a file"},
		{"twice", pack(t, ctr, ctr), "bin", `"bin/ctr" is in it twice`},
		{"too many", pack(t, many...), "bin", "more than 50 entries"},
		{"bomb", bomb, "bin", "larger than an archive may be"},
		{"cut", good[:len(good)/2], "bin", "not a .tar.gz"},
		{"without its end", good[:len(good)-6], "bin", "not a .tar.gz"},
		{"no archive", []byte("<html>"), "bin", "not a .tar.gz"},
		{"empty", nil, "bin", "not a .tar.gz"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			out := t.TempDir()
			found, err := Extract(t.Context(), bytes.NewReader(test.data), test.from, []string{"containerd", "ctr", "absent"}, out, Limits{50, 2 << 20})
			if test.want != "" {
				if err == nil || !strings.Contains(err.Error(), test.want) {
					t.Errorf("got %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if len(found) != 2 {
				t.Errorf("found %v", found)
			}
			got := map[string]string{}
			entries, err := os.ReadDir(out)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range entries {
				b, err := os.ReadFile(filepath.Join(out, e.Name()))
				fi, err2 := e.Info()
				if err != nil || err2 != nil || fi.Mode().Perm()&^0o755 != 0 || fi.Mode()&os.ModeSetuid != 0 {
					t.Error(err, err2, fi.Mode())
				}
				got[e.Name()] = string(b)
			}
			if diff := cmp.Diff(map[string]string{"ctr": "ctr", "containerd": "containerd"}, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestExtractKeeps(t *testing.T) {
	out, victim := t.TempDir(), filepath.Join(t.TempDir(), "victim")
	if err := os.Symlink(victim, filepath.Join(out, "ctr")); err != nil {
		t.Fatal(err)
	}
	data := pack(t, entry{"bin/ctr", tar.TypeReg, "x"})
	if _, err := Extract(t.Context(), bytes.NewReader(data), "bin", []string{"ctr"}, out, Default()); err == nil {
		t.Error("something was written over")
	}
	if _, err := os.Lstat(victim); err == nil {
		t.Error("a link was followed")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Extract(ctx, bytes.NewReader(data), "bin", []string{"ctr"}, t.TempDir(), Default()); err == nil {
		t.Error("went on")
	}
}

func unzipped(t testing.TB, data []byte) []byte {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	all, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// FuzzExtract: whatever an archive says, only wanted names are written, into the
// directory, and within the limit.
func FuzzExtract(f *testing.F) {
	f.Add(pack(f, entry{"bin/", tar.TypeDir, ""}, entry{"bin/ctr", tar.TypeReg, "ctr"}))
	f.Add(pack(f, entry{"bin/../../ctr", tar.TypeReg, "x"}, entry{"bin/ctr", tar.TypeSymlink, ""}))
	f.Add(pack(f, entry{"bin/ctr", tar.TypeReg, strings.Repeat("x", 5000)}, entry{"bin/ctr", tar.TypeReg, ""}))
	f.Add(unzipped(f, pack(f, entry{"bin/", tar.TypeDir, ""}, entry{"bin/ctr", tar.TypeReg, "ctr"})))
	f.Add(unzipped(f, pack(f, entry{"../ctr", tar.TypeReg, "x"}, entry{"bin/ctr", tar.TypeSymlink, ""})))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		// The fuzzer cannot make gzip's checksums: it gets both.
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		if _, err := z.Write(data); err != nil {
			t.Fatal(err)
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		for _, archive := range [][]byte{data, b.Bytes()} {
			parent := t.TempDir()
			out := filepath.Join(parent, "out")
			if err := os.Mkdir(out, 0o755); err != nil {
				t.Fatal(err)
			}
			found, err := Extract(t.Context(), bytes.NewReader(archive), "bin", []string{"ctr"}, out, Limits{10, 4096})
			if err == nil && len(found) > 1 {
				t.Errorf("found %v", found)
			}
			if beside, err := os.ReadDir(parent); err != nil || len(beside) != 1 {
				t.Fatalf("written outside: %v, %v", beside, err)
			}
			inside, err := os.ReadDir(out)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range inside {
				if fi, err := e.Info(); err != nil || e.Name() != "ctr" || !fi.Mode().IsRegular() || fi.Size() > 4096 {
					t.Fatalf("written: %v, %v", e, err)
				}
			}
		}
	})
}
