package image

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// TestStageDamaged alters a staged bundle, in the same boot and over a crash.
func TestStageDamaged(t *testing.T) {
	const kubelet = "kubelet/kubelet"
	keepTimes := func(spoil func(string) error) func(string) error {
		return func(p string) error {
			fi, err := os.Stat(p)
			if err != nil {
				return err
			}
			return errors.Join(spoil(p), os.Chtimes(p, fi.ModTime(), fi.ModTime()))
		}
	}
	zeroes := func(p string) error {
		f, err := os.OpenFile(p, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		_, err = f.WriteAt(make([]byte, 4096), 4096)
		return errors.Join(err, f.Close())
	}
	outside := t.TempDir()
	link := func(p string) error { // to the same content
		real := filepath.Join(outside, filepath.Base(p))
		return errors.Join(os.Rename(p, real), os.Symlink(real, p))
	}
	ways := map[string]func(string) error{
		"altered": keepTimes(zeroes), "emptied": func(p string) error { return os.Truncate(p, 0) },
		"removed": os.Remove, "link": link, "replaced": replaced(func(p string) error {
			return os.WriteFile(p, make([]byte, 300_000), 0o755)
		}),
	}
	for way, spoil := range ways {
		for _, file := range []string{kubelet, ManifestName} {
			for _, boot := range []string{"now", "the next", ""} {
				t.Run(way+" "+file+" "+boot, func(t *testing.T) {
					b, o := openFixture(t), options(t)
					dir := mustStage(t, b, o).Bundle.Dir
					if err := spoil(filepath.Join(dir, file)); err != nil {
						t.Fatal(err)
					}
					var bad *BadBundleError
					_, err := FindStaged(t.Context(), o.Store, b.Digest, boot)
					if !errors.Is(err, ErrNotStaged) || !errors.As(err, &bad) || bad.File != file {
						t.Errorf("FindStaged: got %v", err)
					}
					o.BootID = boot
					s, err := Stage(context.Background(), b, o)
					if err != nil || !s.Copied {
						t.Errorf("not staged anew: %+v, %v", s, err)
					}
					o.BootID = "one more"
					if s := mustStage(t, b, o); s.Copied {
						t.Error("staged anew was not sound")
					}
				})
			}
		}
	}
}

func TestStageAfterReboot(t *testing.T) {
	b, o := openFixture(t), options(t)
	first := mustStage(t, b, o)
	o.BootID = "the next"
	found, err := FindStaged(t.Context(), o.Store, b.Digest, o.BootID)
	if err != nil || found.Trusted {
		t.Fatalf("FindStaged: %+v, %v", found, err)
	}
	if s := mustStage(t, b, o); s.Copied { // sound() sees that it is trusted again
		t.Error("copied again")
	}
	// The upgrader is looked at as well.
	if err := os.WriteFile(first.Upgrader, []byte("0ne"), 0o755); err != nil {
		t.Fatal(err)
	}
	o.BootID = "the one after"
	mustStage(t, b, o)
	// A stamp that is lost or nonsense costs time only.
	for _, stamp := range []string{"", "{", `{"schemaVersion":9}`} {
		write(t, filepath.Join(filepath.Dir(first.Upgrader), "stamp.json"), []byte(stamp))
		if s := mustStage(t, b, o); s.Copied {
			t.Error("copied again")
		}
	}
}
