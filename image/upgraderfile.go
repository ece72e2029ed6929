package image

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// upgraderFile is the running executable, open: it may have no path left.
type upgraderFile struct {
	*os.File
	info fs.FileInfo
}

func openUpgrader(name string) (*upgraderFile, error) {
	// Links are followed: /proc/self/exe is one.
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("open the upgrader: %w", err)
	}
	fi, err := f.Stat()
	if err == nil && !fi.Mode().IsRegular() {
		err = fmt.Errorf("open the upgrader: %s: %w", name, errNotRegular)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return &upgraderFile{f, fi}, nil
}

func (u *upgraderFile) size() int64 { return u.info.Size() }

// copyTo puts the executable into a stage, on the disk when it returns.
func (u *upgraderFile) copyTo(ctx context.Context, stage string, count *meter) (upgraderLooks, error) {
	err := replace(stage, stagedUpgrader, 0o755, func(dst *os.File) error {
		src := &countingReader{ctx, io.NewSectionReader(u.File, 0, u.size()), count}
		n, err := io.CopyBuffer(struct{ io.Writer }{dst}, src, make([]byte, bufferSize))
		if err == nil && n != u.size() {
			err = io.ErrUnexpectedEOF
		}
		return err
	})
	if err != nil {
		return upgraderLooks{}, fmt.Errorf("copy the upgrader: %w", err)
	}
	fi, err := os.Lstat(filepath.Join(stage, stagedUpgrader))
	if err != nil {
		return upgraderLooks{}, err
	}
	return upgraderLooks{looksOf(u.info), looksOf(fi)}, nil
}

// renewUpgrader replaces the staged executable when it is not the running one.
// changed tells that the stamp has to learn the pair.
func renewUpgrader(ctx context.Context, o StageOptions, stage string, known upgraderLooks) (pair upgraderLooks, changed bool, err error) {
	exe, err := openUpgrader(o.Upgrader)
	if err != nil {
		return pair, false, err
	}
	defer exe.Close()
	fi, err := os.Lstat(filepath.Join(stage, stagedUpgrader))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return pair, false, err
	}
	if err == nil && fi.Mode().IsRegular() {
		pair = upgraderLooks{looksOf(exe.info), looksOf(fi)}
		runnable := fi.Mode().Perm() == 0o755
		switch {
		case os.SameFile(exe.info, fi): // this process is the staged one
			return known, false, nil
		case runnable && pair == known:
			return known, false, nil
		}
		if same, err := sameContent(ctx, exe, filepath.Join(stage, stagedUpgrader)); err != nil || same && runnable {
			return pair, true, err
		}
	}
	if err := o.change("write", stage, stagedUpgrader); err != nil {
		return pair, false, err
	}
	pair, err = exe.copyTo(ctx, stage, nil)
	return pair, true, err
}

func sameContent(ctx context.Context, exe *upgraderFile, staged string) (bool, error) {
	f, err := openRegular(staged)
	if err != nil {
		return false, err
	}
	defer f.Close()
	ours, err := sum(ctx, io.NewSectionReader(exe.File, 0, exe.size()))
	if err != nil {
		return false, err
	}
	theirs, err := sum(ctx, f)
	return bytes.Equal(ours, theirs), err
}

func sum(ctx context.Context, r io.Reader) ([]byte, error) {
	h := sha256.New()
	_, err := io.CopyBuffer(struct{ io.Writer }{h}, &countingReader{ctx, r, nil}, make([]byte, bufferSize))
	return h.Sum(nil), err
}

// countingReader ends early when ctx does.
type countingReader struct {
	ctx   context.Context
	src   io.Reader
	count *meter
}

func (r *countingReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := r.src.Read(p)
	r.count.add(int64(n))
	return n, err
}

// UpgraderIs tells whether the staged upgrader is the executable at name, by
// content.
func (s Staged) UpgraderIs(ctx context.Context, name string) (bool, error) {
	exe, err := openUpgrader(name)
	if err != nil {
		return false, err
	}
	defer exe.Close()
	fi, err := os.Lstat(s.Upgrader)
	if err != nil || os.SameFile(exe.info, fi) || exe.size() != fi.Size() {
		return err == nil && os.SameFile(exe.info, fi), err
	}
	return sameContent(ctx, exe, s.Upgrader)
}
