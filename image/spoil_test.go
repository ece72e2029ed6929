package image

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// edit changes the manifest as the Go value.
func edit(change func(*Manifest)) func(*testing.T, string) {
	return func(t *testing.T, dir string) {
		var m Manifest
		if err := json.Unmarshal(read(t, dir, ManifestName), &m); err != nil {
			t.Fatal(err)
		}
		change(&m)
		data, err := marshal(m, "")
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, ManifestName), data)
	}
}

// rewrite changes the manifest's text.
func rewrite(old, new string) func(*testing.T, string) {
	return func(t *testing.T, dir string) {
		data := read(t, dir, ManifestName)
		if !bytes.Contains(data, []byte(old)) {
			t.Fatalf("no %q in the manifest", old)
		}
		write(t, filepath.Join(dir, ManifestName), bytes.Replace(data, []byte(old), []byte(new), 1))
	}
}

func read(t *testing.T, dir, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// file changes one file of the directory.
func file(name string, change func(path string) error) func(*testing.T, string) {
	return func(t *testing.T, dir string) {
		if err := change(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
}

func replaced(with func(path string) error) func(string) error {
	return func(path string) error { return errors.Join(os.Remove(path), with(path)) }
}

func symlinkToSelf(path string) error {
	real := filepath.Join(filepath.Dir(filepath.Dir(filepath.Dir(path))), "outside-"+filepath.Base(path))
	return errors.Join(os.Rename(path, real), os.Symlink(real, path))
}

func hardlinkOutside(path string) error {
	return os.Link(path, filepath.Join(filepath.Dir(filepath.Dir(filepath.Dir(path))), "linked-"+filepath.Base(path)))
}

func fifo(path string) error { return syscall.Mkfifo(path, 0o644) }
func device(path string) error {
	return syscall.Mknod(path, syscall.S_IFCHR|0o644, 1<<8|3)
}
func directory(path string) error { return os.Mkdir(path, 0o755) }

// refused checks that a bundle is refused by everything that reads it, with the
// file's name, and that nothing is left in the store.
func refused(t *testing.T, dir, file, reason string, contents bool) {
	t.Helper()
	check := func(what string, err error) {
		t.Helper()
		var bad *BadBundleError
		switch {
		case !errors.As(err, &bad):
			t.Fatalf("%s: got %v, want a BadBundleError", what, err)
		case bad.File != file || !strings.Contains(bad.Reason, reason):
			t.Fatalf("%s: got %q: %q, want %q: …%s…", what, bad.File, bad.Reason, file, reason)
		case bad.Hint == "" || !strings.Contains(err.Error(), file):
			t.Fatalf("%s: no hint or no name: %v", what, err)
		}
	}
	store := filepath.Join(t.TempDir(), "store")
	o := StageOptions{Store: store, Upgrader: upgraderFixture(t, "1"), BootID: "now"}
	b, err := Open(dir)
	if !contents {
		check("Open", err)
		// And when it went bad after it was opened.
		good := openFixture(t)
		good.Dir = dir
		_, err = Stage(context.Background(), good, o)
		if err == nil {
			t.Fatal("staged a bundle that went bad after it was opened")
		}
	} else {
		if err != nil {
			t.Fatal(err)
		}
		check("Verify", b.Verify(context.Background(), nil))
		_, err = Stage(context.Background(), b, o)
		check("Stage", err)
		_, err = Pack(context.Background(), PackOptions{Parts: []Part{{b, os.Args[0]}}, Temp: store})
		check("Pack", err)
	}
	if diff := cmp.Diff([]string(nil), names(t, store)); diff != "" {
		t.Errorf("left in the store:\n%s", diff)
	}
}

func names(t *testing.T, dir string) (all []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}
