package debian

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestMissing(t *testing.T) {
	status := "runc installed\niptables not-installed\nnftables config-files\nlibc6 installed\n"
	got := missing(status, []string{"nftables", "runc", "iptables", "absent", "libc6"})
	want := []string{"nftables", "iptables", "absent"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestInstallIsSilentWhenPresent(t *testing.T) {
	if _, err := exec.LookPath("dpkg-query"); err != nil {
		t.Skip("not a Debian")
	}
	absent, err := Missing(t.Context(), "dpkg", "no-such-package-at-all")
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(absent, []string{"no-such-package-at-all"}) {
		t.Fatalf("missing %v", absent)
	}
	progress := writerFunc(func(p []byte) (int, error) {
		t.Errorf("said %q", p)
		return len(p), nil
	})
	if err := Install(t.Context(), progress, "dpkg", "coreutils"); err != nil {
		t.Error(err)
	}
	if err := Install(t.Context(), io.Discard); err != nil {
		t.Errorf("with no package: %v", err)
	}
}

func TestUnpackMergesUsr(t *testing.T) {
	if _, err := exec.LookPath("cp"); err != nil {
		t.Skip("no cp")
	}
	root := t.TempDir()
	for _, file := range []string{"sbin/a", "usr/sbin/b", "lib/x/one", "usr/lib/x/two", "usr/bin/c"} {
		path := filepath.Join(root, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(file), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // a second Unpack into the same root changes nothing
		if err := Unpack(t.Context(), root); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{"bin", "sbin", "lib"} {
		if to, err := os.Readlink(filepath.Join(root, dir)); err != nil || to != "usr/"+dir {
			t.Errorf("%s links to %q, %v", dir, to, err)
		}
	}
	for _, file := range []string{"sbin/a", "sbin/b", "lib/x/one", "lib/x/two", "bin/c"} {
		if _, err := os.Stat(filepath.Join(root, file)); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Lstat(filepath.Join(root, "lib64")); !os.IsNotExist(err) {
		t.Errorf("lib64: %v, want none", err)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
