package image

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"runtime"
	"slices"

	"golang.org/x/sync/errgroup"
)

// Verify does Open's checks again and reads every byte of every file. It
// returns a *BadBundleError that names a wrong file, or ctx's error. It writes
// nothing and holds one small buffer a worker, whatever the bundle's size.
//
// progress, which may be nil, is called by one goroutine at a time with the
// bytes read so far and in all.
func (b *Bundle) Verify(ctx context.Context, progress func(done, total int64)) error {
	again, err := open(b.Dir, b.Manifest.Architecture)
	if err != nil {
		return err
	}
	if again.Digest != b.Digest {
		return fmt.Errorf("verify bundle: %w", badFile(ManifestName, "changed since the bundle was opened"))
	}
	if err := b.verifyFiles(ctx, progress); err != nil {
		return fmt.Errorf("verify bundle: %w", err)
	}
	if _, err := again.Images(ctx); err != nil {
		return fmt.Errorf("verify bundle: %w", err)
	}
	return nil
}

// verifyFiles reads all files, the largest first so that no core waits long at
// the end for the other.
func (b *Bundle) verifyFiles(ctx context.Context, progress func(done, total int64)) error {
	files := slices.Clone(b.Manifest.Files)
	slices.SortStableFunc(files, func(x, y File) int { return cmp.Compare(y.Size, x.Size) })
	count := newMeter(b.Manifest.size(), progress)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(workers())
	for _, f := range files {
		g.Go(func() error { return b.verifyFile(ctx, f, count) })
	}
	return g.Wait()
}

func (b *Bundle) verifyFile(ctx context.Context, f File, count *meter) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	src, err := b.OpenFile(f)
	if err != nil {
		return err
	}
	defer src.Close()
	return check(ctx, src, f, count.add)
}

// check reads src to its end and compares it with the manifest's file.
func check(ctx context.Context, src io.Reader, f File, add func(int64)) error {
	r := newCheckedReader(ctx, src, f, add)
	// Without a ReaderFrom in the way, which would choose its own buffer.
	_, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, r, make([]byte, bufferSize))
	return err
}

// workers is how many files are read at a time. Beyond eight a disk, not a
// core, is what is waited for.
func workers() int { return min(8, runtime.GOMAXPROCS(0)) }
