package image

import (
	"context"
	"debug/elf"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"
)

// TestReproducible builds, signs and packs twice: from other directories, with
// other times, another umask, other modes of what is read and another number of
// threads. It prints the digests for whoever compares them with another
// machine's.
func TestReproducible(t *testing.T) {
	needsAMD64(t)
	signer, _ := pair(t)
	type result struct{ bundle, signature, image, archive string }
	once := func(umask, threads int, touched time.Time, mode os.FileMode) result {
		t.Helper()
		defer syscall.Umask(syscall.Umask(umask))
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(threads))
		from := componentDir(t, elf.EM_X86_64, nil)
		err := filepath.WalkDir(from, func(name string, d os.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				err = os.Chmod(name, mode)
			}
			if err == nil {
				err = os.Chtimes(name, touched, touched)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		b, err := Build(context.Background(), BuildOptions{From: from, Out: filepath.Join(dir, "bundle")})
		if err != nil {
			t.Fatal(err)
		}
		b = mustSign(t, b.Dir, signer)
		archive := filepath.Join(dir, "image.tar")
		digest := packTo(t, archive, PackOptions{Parts: []Part{{b, elfUpgrader(t)}}, Compression: Zstd, Temp: dir})
		return result{b.Digest, string(b.signature), digest, sumOf(t, archive)}
	}
	first := once(0o022, 1, time.Unix(1_000_000_000, 0), 0o755)
	again := once(0o077, 8, time.Now(), 0o700)
	t.Logf("bundle  %s, again %s", first.bundle, again.bundle)
	t.Logf("image   %s, again %s", first.image, again.image)
	t.Logf("archive sha256:%s, again sha256:%s", first.archive, again.archive)
	if first != again {
		t.Errorf("not the same: %+v, %+v", first, again)
	}
}
