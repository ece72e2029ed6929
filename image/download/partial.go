package download

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const (
	partialSuffix   = ".partial"
	validatorSuffix = ".validator"
)

// partial is the file that is being written, locked, with the hash of what is in
// it.
type partial struct {
	file      *os.File
	size      int64
	hash      hash.Hash
	validator string // of what is in it; "": not known
	answers   int    // how many it was put together from, those of the past counted as one
}

// openPartial opens, locks and hashes what has come of a file. It waits for
// whoever has it locked, as long as ctx lasts.
func (f *Fetcher) openPartial(ctx context.Context, sum string) (*partial, error) {
	name := f.path(sum, partialSuffix)
	for {
		file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o755)
		if err != nil {
			return nil, err
		}
		if err := lock(ctx, file); err != nil {
			return nil, errors.Join(err, file.Close())
		}
		// Whoever had it may have renamed or removed it.
		mine, err := file.Stat()
		if err != nil {
			return nil, errors.Join(err, file.Close())
		}
		if there, err := os.Lstat(name); err != nil || !os.SameFile(mine, there) {
			_ = file.Close()
			continue
		}
		p := &partial{file: file, hash: sha256.New()}
		if p.size, err = io.Copy(p.hash, file); err != nil {
			return nil, errors.Join(err, file.Close())
		}
		if p.size > 0 {
			p.answers = 1
			validator, _ := os.ReadFile(f.path(sum, validatorSuffix)) // without it the hash decides
			p.validator = string(validator)
		}
		return p, nil
	}
}

func lock(ctx context.Context, file *os.File) error {
	for {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// reset empties it.
func (p *partial) reset() error {
	p.size, p.answers, p.validator = 0, 0, ""
	p.hash.Reset()
	if err := p.file.Truncate(0); err != nil {
		return err
	}
	_, err := p.file.Seek(0, io.SeekStart)
	return err
}

// Write appends.
func (p *partial) Write(b []byte) (int, error) {
	n, err := p.file.Write(b)
	p.hash.Write(b[:n])
	p.size += int64(n)
	return n, err
}

func (p *partial) sum() string { return hex.EncodeToString(p.hash.Sum(nil)) }

// keepValidator writes down what a later If-Range may say.
func (f *Fetcher) keepValidator(sum string, p *partial) error {
	name := f.path(sum, validatorSuffix)
	if p.validator == "" || len(p.validator) > 1024 {
		p.validator = ""
		if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		return nil
	}
	return os.WriteFile(name, []byte(p.validator), 0o644)
}

// finish gives a whole and right file its name. It is synced first: a name must
// not outlive a crash that its bytes do not.
func (f *Fetcher) finish(sum string, p *partial) error {
	if err := errors.Join(p.file.Chmod(0o755), p.file.Sync()); err != nil {
		return fmt.Errorf("write to the cache: %w", err)
	}
	if err := os.Rename(f.path(sum, partialSuffix), f.path(sum, "")); err != nil {
		return err
	}
	return f.forget(sum, validatorSuffix)
}

// drop removes what is of no use.
func (f *Fetcher) drop(sum string) error {
	return errors.Join(f.forget(sum, partialSuffix), f.forget(sum, validatorSuffix))
}

func (f *Fetcher) forget(sum, suffix string) error {
	if err := os.Remove(f.path(sum, suffix)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// cached tells whether a file is in the cache, by its hash, and its size. One
// that is wrong is removed.
func (f *Fetcher) cached(sum string) (int64, bool, error) {
	file, err := os.OpenFile(f.path(sum, ""), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrNotExist) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	defer file.Close()
	h := sha256.New()
	size, err := io.Copy(h, file)
	if err != nil {
		return 0, false, err
	}
	if hex.EncodeToString(h.Sum(nil)) != sum {
		f.o.Log.Warn("a file in the cache was damaged, fetching it again", "file", f.path(sum, ""))
		return 0, false, f.forget(sum, "")
	}
	return size, true, nil
}
