package image

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestVerifyFile(t *testing.T) {
	b := openFixture(t)
	f, _ := b.File(Kubelet, "kubelet")
	name := filepath.Join(b.Dir, f.Path)
	if err := b.VerifyFile(t.Context(), f); err != nil {
		t.Fatal(err)
	}
	// Not read again: an ended context would end the reading.
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.VerifyFile(ended, f); err != nil {
		t.Errorf("an unchanged file was read again: %v", err)
	}
	fi, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	data := read(t, b.Dir, f.Path)
	data[len(data)/2] ^= 1
	write(t, name, data)
	if err := os.Chtimes(name, fi.ModTime(), fi.ModTime()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		var bad *BadBundleError
		if err := b.VerifyFile(t.Context(), f); !errors.As(err, &bad) || bad.File != f.Path {
			t.Errorf("an altered file: %v", err)
		}
	}
	data[len(data)/2] ^= 1
	write(t, name, data)
	if err := b.VerifyFile(ended, f); !errors.Is(err, context.Canceled) {
		t.Errorf("an ended context: %v", err)
	}
	if err := b.VerifyFile(t.Context(), f); err != nil {
		t.Errorf("mended: %v", err)
	}
}
