package image

import (
	"context"
	"fmt"
	"sync"
)

// verifiedFiles remembers which files were found good, and how they looked
// then: who changes a file cannot set its ctime.
type verifiedFiles struct {
	mu    sync.Mutex
	known map[string]looks // by path and sha256
}

// VerifyFile reads every byte of one of the bundle's files, for who is about to
// run it from the bundle. It returns a *BadBundleError when the bytes are not
// the manifest's, or ctx's error. A file that has not changed since the last
// call is not read again. It writes nothing.
func (b *Bundle) VerifyFile(ctx context.Context, f File) error {
	b.verified.mu.Lock()
	defer b.verified.mu.Unlock()
	src, err := b.OpenFile(f)
	if err != nil {
		return fmt.Errorf("verify bundle: %w", err)
	}
	defer src.Close()
	// Before it is read: one that changes meanwhile is read again next time.
	fi, err := src.Stat()
	if err != nil {
		return fmt.Errorf("verify bundle: %w", err)
	}
	now := looksOf(fi)
	if was, ok := b.verified.known[f.Path+" "+f.SHA256]; ok && was == now {
		return nil
	}
	if err := check(ctx, src, f, nil); err != nil {
		return fmt.Errorf("verify bundle: %w", err)
	}
	if b.verified.known == nil {
		b.verified.known = map[string]looks{}
	}
	b.verified.known[f.Path+" "+f.SHA256] = now
	return nil
}
