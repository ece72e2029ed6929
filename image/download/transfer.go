package download

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
)

var sha256Syntax = regexp.MustCompile(`^[0-9a-f]{64}$`)

// transfer is one file on its way.
type transfer struct {
	f    *Fetcher
	file File
	p    *partial
	left gauge
	best int64 // how much of it there was at most
	anew bool  // it was fetched once more in one piece already
}

// one brings one file into the cache.
func (f *Fetcher) one(ctx context.Context, file File) (_ string, err error) {
	if !sha256Syntax.MatchString(file.SHA256) {
		return "", fmt.Errorf("download: %.80q is no sha256", file.SHA256)
	}
	t := &transfer{f: f, file: file, left: gauge{all: f.count}}
	if there, err := t.cached(); there || err != nil {
		return f.path(file.SHA256, ""), err
	}
	if t.p, err = f.openPartial(ctx, file.SHA256); err != nil {
		return "", fmt.Errorf("open the download cache: %w", err)
	}
	defer t.p.file.Close()
	if there, err := t.cached(); there || err != nil { // somebody else has fetched it meanwhile
		return f.path(file.SHA256, ""), errors.Join(err, f.drop(file.SHA256))
	}
	t.best = t.p.size
	if t.p.size == 0 || t.p.sum() != file.SHA256 { // else it was killed between the last byte and the rename
		if err := f.retry(ctx, file.URL, func() (bool, error) { return t.attempt(ctx) }); err != nil {
			return "", err
		}
	}
	if err := f.finish(file.SHA256, t.p); err != nil {
		return "", err
	}
	return f.path(file.SHA256, ""), nil
}

func (t *transfer) cached() (bool, error) {
	size, there, err := t.f.cached(t.file.SHA256)
	if there {
		t.left.set(size, size)
	}
	return there, err
}

// attempt asks for what is missing, and ends well when nothing is. It tells
// whether there is more than ever before.
func (t *transfer) attempt(ctx context.Context) (came bool, err error) {
	p := t.p
	a, err := t.f.ask(ctx, t.file.URL, p.size, p.validator)
	if errors.Is(err, errOtherRange) {
		return false, errors.Join(err, t.reset())
	}
	if err != nil {
		return false, err
	}
	defer a.close()
	if a.offset == 0 { // the whole file, asked for or not
		if err := t.reset(); err != nil {
			return false, err
		}
		p.validator = a.validator
		if err := t.f.keepValidator(t.file.SHA256, p); err != nil {
			return false, err
		}
	}
	p.answers++
	if a.total > t.f.o.MaxSize {
		return false, t.tooLarge()
	}
	err = t.read(a)
	came, t.best = p.size > t.best, max(p.size, t.best)
	switch {
	case p.sum() == t.file.SHA256: // whatever the server said of its length
		return came, nil
	case err != nil:
		return came, err
	}
	return came, t.wrong(a)
}

func (t *transfer) tooLarge() error {
	return errors.Join(refuse(t.file.URL, "", "%w: %d MiB", errTooLarge, t.f.o.MaxSize>>20), t.f.drop(t.file.SHA256))
}

// read takes an answer's body to its end.
func (t *transfer) read(a *answer) error {
	t.left.set(t.p.size, a.total)
	buffer := make([]byte, 128<<10)
	for {
		n, err := a.body.Read(buffer)
		if t.p.size+int64(n) > t.f.o.MaxSize {
			return t.tooLarge()
		}
		if _, err := t.p.Write(buffer[:n]); err != nil {
			return fmt.Errorf("write to the cache: %w", err)
		}
		t.left.set(t.p.size, a.total)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return a.failed(err)
		}
	}
	if a.total >= 0 && t.p.size < a.total { // a part, ended early
		return a.failed(io.ErrUnexpectedEOF)
	}
	return nil
}

// wrong is what to do about a file that is said to be whole and is not right.
func (t *transfer) wrong(a *answer) error {
	wrong := fmt.Errorf("sha256 is %s instead of %s (%d bytes)", t.p.sum(), t.file.SHA256, t.p.size)
	// Parts of two files, or a connection whose end tells nothing.
	if once := t.p.answers > 1 || a.total < 0; once && !t.anew {
		t.anew = true
		return errors.Join(retriable(t.file.URL, wrong), t.reset())
	}
	refused := refuse(t.file.URL, "this is not the file that is pinned: what the server has was changed or damaged; "+
		"compare with the project's own release page before you pin anything else", "%w", wrong)
	return errors.Join(refused, t.f.drop(t.file.SHA256))
}

func (t *transfer) reset() error {
	t.left.set(0, 0)
	if err := t.p.reset(); err != nil {
		return fmt.Errorf("write to the cache: %w", err)
	}
	return nil
}
