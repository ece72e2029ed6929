package image

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestVerify(t *testing.T) {
	b := openFixture(t)
	var last, total int64
	err := b.Verify(context.Background(), func(d, n int64) {
		if d < last {
			t.Errorf("progress went back from %d to %d", last, d)
		}
		last, total = d, n
	})
	if err != nil {
		t.Fatal(err)
	}
	if last != total || total != 9*300_000 {
		t.Errorf("progress ended at %d of %d", last, total)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := b.Verify(ctx, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: got %v", err)
	}
}

func TestAccessors(t *testing.T) {
	b := openFixture(t)
	f, ok := b.File(Containerd, "ctr")
	if !ok || f.Path != "containerd/ctr" || f.Place != "/usr/local/bin/ctr" || f.Mode != 0o755 {
		t.Errorf("File: %+v, %v", f, ok)
	}
	if _, ok := b.File(Kubelet, "ctr"); ok {
		t.Error("File: found ctr in kubelet")
	}
	if n := len(b.ComponentFiles(Containerd)); n != 3 {
		t.Errorf("ComponentFiles: %d", n)
	}
	if v := b.Version(CNIPlugins); v != "v1.9.1" {
		t.Errorf("Version: %q", v)
	}
	// A root that is reached through a link is fine, as in /proc/PID/root.
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(b.Dir, link); err != nil {
		t.Fatal(err)
	}
	if got := mustOpen(t, link); got.Digest != b.Digest {
		t.Error("another digest through a link")
	}
}
