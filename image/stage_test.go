package image

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func options(t *testing.T) StageOptions {
	t.Helper()
	return StageOptions{Store: filepath.Join(t.TempDir(), "lib", "bundles"), Upgrader: upgraderFixture(t, "one"), BootID: "now"}
}

func mustStage(t *testing.T, b *Bundle, o StageOptions) Staged {
	t.Helper()
	s, err := Stage(context.Background(), b, o)
	if err != nil {
		t.Fatal(err)
	}
	sound(t, b, o, s)
	return s
}

// sound checks that the store has the whole stage and nothing else.
func sound(t *testing.T, b *Bundle, o StageOptions, s Staged) {
	t.Helper()
	dir := filepath.Join(o.Store, strings.TrimPrefix(b.Digest, "sha256:"))
	want := Staged{&Bundle{Dir: filepath.Join(dir, "bundle"), Digest: b.Digest, Manifest: b.Manifest}, filepath.Join(dir, "upgrader"), s.Copied, true}
	if diff := cmp.Diff(want, s, cmpopts.IgnoreUnexported(Bundle{})); diff != "" {
		t.Errorf("staged (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{filepath.Base(dir)}, names(t, o.Store)); diff != "" {
		t.Errorf("store:\n%s", diff)
	}
	if diff := cmp.Diff([]string{"bundle", "stamp.json", "upgrader"}, names(t, dir)); diff != "" {
		t.Errorf("stage:\n%s", diff)
	}
	if err := s.Bundle.Verify(context.Background(), nil); err != nil {
		t.Error(err)
	}
	for _, f := range b.Manifest.Files {
		if got := mode(t, filepath.Join(s.Bundle.Dir, f.Path)); got != os.FileMode(f.Mode) {
			t.Errorf("%s has mode %v", f.Path, got)
		}
	}
	if mode(t, o.Store) != 0o700 || mode(t, dir) != 0o700 || mode(t, s.Upgrader) != 0o755 {
		t.Errorf("modes: store %v, stage %v, upgrader %v", mode(t, o.Store), mode(t, dir), mode(t, s.Upgrader))
	}
	if got, want := string(read(t, dir, "upgrader")), string(read(t, o.Upgrader, "")); got != want {
		t.Errorf("upgrader is %q, want %q", got, want)
	}
	found, err := FindStaged(t.Context(), o.Store, b.Digest, o.BootID)
	if err != nil || !found.Trusted || found.Copied {
		t.Errorf("FindStaged: %+v, %v", found, err)
	}
	for _, name := range []string{o.Upgrader, s.Upgrader, upgraderFixture(t, "eno"), upgraderFixture(t, "one, and longer")} {
		want := string(read(t, name, "")) == string(read(t, s.Upgrader, ""))
		if same, err := s.UpgraderIs(t.Context(), name); err != nil || same != want {
			t.Errorf("UpgraderIs(%s) = %v, %v, want %v", name, same, err, want)
		}
	}
}

func mode(t *testing.T, name string) fs.FileMode {
	t.Helper()
	fi, err := os.Lstat(name)
	if err != nil {
		t.Fatal(err)
	}
	return fi.Mode().Perm()
}

func TestStageTwice(t *testing.T) {
	b, o := openFixture(t), options(t)
	if _, err := FindStaged(t.Context(), o.Store, b.Digest, o.BootID); !errors.Is(err, ErrNotStaged) {
		t.Errorf("before: got %v", err)
	}
	var last, total int64
	o.Progress = func(d, n int64) { last, total = d, n }
	if s := mustStage(t, b, o); !s.Copied {
		t.Error("first: not copied")
	}
	if want := b.Manifest.size() + int64(len("one")); last != want || total != want {
		t.Errorf("progress ended at %d of %d, want %d", last, total, want)
	}
	before := snapshot(t, o.Store)
	if s := mustStage(t, b, o); s.Copied {
		t.Error("second: copied")
	}
	if diff := cmp.Diff(before, snapshot(t, o.Store)); diff != "" {
		t.Errorf("staging again changed:\n%s", diff)
	}
	// The stage may be staged from itself.
	if s := mustStage(t, mustOpen(t, mustStage(t, b, o).Bundle.Dir), o); s.Copied {
		t.Error("from itself: copied")
	}
}

// snapshot is all that stat tells of a tree.
func snapshot(t *testing.T, dir string) map[string]looks {
	t.Helper()
	all := map[string]looks{}
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		fi, err := d.Info()
		all[name] = looksOf(fi)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestStageUpgrader(t *testing.T) {
	b, o := openFixture(t), options(t)
	first := mustStage(t, b, o)
	for _, content := range []string{"two", "2wo", "a longer one"} { // another size, the same size
		o.Upgrader = upgraderFixture(t, content)
		if s := mustStage(t, b, o); s.Copied {
			t.Error("the bundle was copied for a new upgrader")
		}
	}
	// The same one in another place is not copied again.
	before := snapshot(t, first.Upgrader)
	o.Upgrader = upgraderFixture(t, "a longer one")
	mustStage(t, b, o)
	if diff := cmp.Diff(before, snapshot(t, first.Upgrader)); diff != "" {
		t.Errorf("the same upgrader was copied again:\n%s", diff)
	}
	// Lost, altered, not executable: put right.
	for _, spoil := range []func(string) error{
		os.Remove,
		func(p string) error { return os.WriteFile(p, []byte("a LONGER one"), 0o755) },
		func(p string) error { return os.Chmod(p, 0o644) },
		replaced(func(p string) error { return os.Symlink("/bin/true", p) }),
	} {
		if err := spoil(first.Upgrader); err != nil {
			t.Fatal(err)
		}
		mustStage(t, b, o)
	}
	// The staged one is what runs.
	o.Upgrader = first.Upgrader
	mustStage(t, b, o)
	if err := os.Remove(first.Upgrader); err != nil {
		t.Fatal(err)
	}
	if _, err := FindStaged(t.Context(), o.Store, b.Digest, o.BootID); !errors.Is(err, ErrNotStaged) {
		t.Errorf("without the upgrader: got %v", err)
	}
	// A path of an open file that has no name any more.
	name := upgraderFixture(t, "nameless")
	if err := os.Symlink(name, name+".link"); err != nil {
		t.Fatal(err)
	}
	o.Upgrader = name + ".link"
	mustStage(t, b, o)
}

func TestStageLeftovers(t *testing.T) {
	b, o := openFixture(t), options(t)
	write(t, filepath.Join(o.Store, ".stage-123", "bundle", "kubelet", "kubelet"), []byte("half"))
	write(t, filepath.Join(o.Store, ".stage-old-abc", "stamp.json"), nil)
	dir := filepath.Dir(mustStage(t, b, o).Upgrader)
	write(t, filepath.Join(o.Store, ".stage-456", "upgrader"), nil)
	write(t, filepath.Join(dir, ".stage-upgrader-1"), nil)
	mustStage(t, b, o)
	// Another bundle's stage stays.
	write(t, filepath.Join(o.Store, strings.Repeat("0", 64), "stamp.json"), nil)
	if _, err := Stage(context.Background(), b, o); err != nil {
		t.Fatal(err)
	}
	if n := len(names(t, o.Store)); n != 2 {
		t.Errorf("%d stages", n)
	}
}

func TestStageEnds(t *testing.T) {
	b, o := openFixture(t), options(t)
	ctx, cancel := context.WithCancel(context.Background())
	o.Progress = func(done, _ int64) {
		if done > 1_000_000 {
			cancel()
		}
	}
	if _, err := Stage(ctx, b, o); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled half-way: got %v", err)
	}
	if left := names(t, o.Store); left != nil {
		t.Errorf("left: %v", left)
	}
	o.Progress = nil
	// Held by another one.
	unlock, err := lockStore(context.Background(), o.Store)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel = context.WithTimeout(context.Background(), 120*time.Millisecond)
	defer cancel()
	if _, err := Stage(ctx, b, o); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "another") {
		t.Errorf("locked: got %v", err)
	}
	unlock()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if _, err := Stage(context.Background(), b, o); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	mustStage(t, b, o)
}

func TestStagedNeeds(t *testing.T) {
	b := openFixture(t)
	if n := StagedNeeds(b); n < b.Manifest.size() || n > b.Manifest.size()+200_000 {
		t.Errorf("%d for %d", n, b.Manifest.size())
	}
}
