package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"sync"
)

// bufferSize is how much is read, hashed and written at a time: it stays in a
// core's cache between the three.
const bufferSize = 128 << 10

// checkedReader reads a file of a bundle and compares it with the manifest on
// the way. Instead of io.EOF it returns a *BadBundleError when the bytes were
// not the manifest's. It ends early when ctx does.
type checkedReader struct {
	ctx  context.Context
	src  io.Reader
	file File
	hash hash.Hash
	n    int64
	add  func(int64) // told how much was read; may be nil
}

func newCheckedReader(ctx context.Context, src io.Reader, f File, add func(int64)) *checkedReader {
	return &checkedReader{ctx: ctx, src: src, file: f, hash: sha256.New(), add: add}
}

func (r *checkedReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := r.src.Read(p)
	r.hash.Write(p[:n])
	r.n += int64(n)
	if r.add != nil {
		r.add(int64(n))
	}
	if r.n > r.file.Size {
		return 0, badFile(r.file.Path, fmt.Sprintf("has more than %d bytes", r.file.Size))
	}
	if err != io.EOF { //nolint:errorlint // io.Reader's contract
		return n, err
	}
	if r.n < r.file.Size {
		return n, badFile(r.file.Path, fmt.Sprintf("has %d bytes instead of %d", r.n, r.file.Size))
	}
	if hex.EncodeToString(r.hash.Sum(nil)) != r.file.SHA256 {
		return n, badFile(r.file.Path, "was altered: its sha256 is not the manifest's")
	}
	return n, io.EOF
}

// meter adds up what several workers did and tells it, one at a time.
type meter struct {
	mu          sync.Mutex
	done, total int64
	tell        func(done, total int64)
}

// newMeter returns nil, which counts nothing, for a nil tell.
func newMeter(total int64, tell func(done, total int64)) *meter {
	if tell == nil {
		return nil
	}
	return &meter{total: total, tell: tell}
}

func (m *meter) add(n int64) {
	if m == nil || n == 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.done += n
	m.tell(m.done, m.total)
}
