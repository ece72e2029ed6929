package hostexec

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// Replacement is a file to put in place of another.
type Replacement struct {
	// Path on the host. Where it is a link, the link stays and its target is
	// replaced.
	Path    string
	Content io.Reader
	// SHA256 in hex; when set, other content is refused before anything is
	// changed.
	SHA256 string
	// Mode of a file that was not there before, and of one that was: its run
	// bits come from here, the owner and the labels from the old file.
	Mode fs.FileMode
}

// DigestError is content that is not what was promised.
type DigestError struct{ Path, Want, Got string }

func (e *DigestError) Error() string {
	return fmt.Sprintf("%s: content has sha256 %s, want %s", e.Path, e.Got, e.Want)
}

// Replace puts content in place of a file: written beside it under a temporary
// name, given the old file's owner, extended attributes and times policy,
// fsynced, renamed over it, and the directory fsynced. A crash at any instant
// leaves the old or the new file, and at most the temporary one, which the next
// Replace of the same path removes. A program running from the old file keeps
// it (no ETXTBSY).
func (fs FS) Replace(ctx context.Context, r Replacement) error {
	p, err := fs.Prepare(ctx, r)
	if err != nil {
		return err
	}
	defer p.Discard()
	return p.Commit()
}

// Prepared is a file that lies beside the one that it is to replace, complete
// and on the disk. It needs no more room, and no more than a rename.
type Prepared struct {
	fs               FS
	path, temp, real string
}

// Prepare is the part of Replace that may find the disk full or the content
// altered: it changes nothing but for the temporary file.
func (fs FS) Prepare(ctx context.Context, r Replacement) (*Prepared, error) {
	real, err := fs.Resolve(r.Path)
	if err != nil {
		return nil, err
	}
	temp := tempName(real)
	if err := fs.sweep(temp); err != nil {
		return nil, err
	}
	if err := fs.change(OpWrite, temp, func() error { return fs.write(ctx, r, real, temp) }); err != nil {
		return nil, err
	}
	return &Prepared{fs: fs, path: r.Path, temp: temp, real: real}, nil
}

// write makes the temporary file, or nothing.
func (fs FS) write(ctx context.Context, r Replacement, real, temp string) (err error) {
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fs.named(err)
	}
	defer func() {
		_ = f.Close()
		if err != nil {
			_ = os.Remove(temp)
		}
	}()
	h := sha256.New()
	if _, err := io.Copy(io.MultiWriter(f, h), &contextReader{ctx, r.Content}); err != nil {
		return fmt.Errorf("write %s: %w", r.Path, fs.named(err))
	}
	if got := hex.EncodeToString(h.Sum(nil)); r.SHA256 != "" && got != r.SHA256 {
		return &DigestError{Path: r.Path, Want: r.SHA256, Got: got}
	}
	if err := inherit(f, real, r.Mode); err != nil {
		return fs.named(err)
	}
	return fs.named(f.Sync())
}

// Commit gives the file its name and makes that durable.
func (p *Prepared) Commit() error {
	return p.fs.change(OpRename, p.real, func() error {
		if err := os.Rename(p.temp, p.real); err != nil {
			return fmt.Errorf("rename over %s: %w", p.path, err)
		}
		return p.fs.named(syncDir(filepath.Dir(p.real)))
	})
}

// Discard removes what was prepared and not committed. What stays in spite of
// it is removed by the next Prepare, Link or Remove of the same path.
func (p *Prepared) Discard() { _ = p.fs.sweep(p.temp) }

// WriteFile replaces a file's content, as Replace does.
func (fs FS) WriteFile(ctx context.Context, path string, data []byte, mode fs.FileMode) error {
	return fs.Replace(ctx, Replacement{Path: path, Content: bytes.NewReader(data), Mode: mode})
}

// CopyFile replaces the file at to by a copy of the one at from, as Replace
// does, with its mode.
func (fs FS) CopyFile(ctx context.Context, from, to string) error {
	f, err := fs.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	return fs.Replace(ctx, Replacement{Path: to, Content: f, Mode: info.Mode().Perm()})
}

// AppendLine appends data and a newline to a file of ours, which is made where
// it is not there, and fsyncs it; the line is there as a whole or, after a crash,
// as a torn tail.
func (fs FS) AppendLine(path string, data []byte) error {
	real, err := fs.Resolve(path)
	if err != nil {
		return err
	}
	return fs.change(OpAppend, real, func() (err error) {
		_, there := os.Lstat(real)
		f, err := os.OpenFile(real, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
		if err != nil {
			return fs.named(err)
		}
		defer func() { err = errors.Join(err, f.Close()) }()
		if _, err := f.Write(append(data, '\n')); err != nil {
			return fs.named(err)
		}
		if err := f.Sync(); err != nil || there == nil {
			return fs.named(err)
		}
		return fs.named(syncDir(filepath.Dir(real)))
	})
}

// inherit gives the new file what the old one had: owner and extended
// attributes (the SELinux label is one). Without an old file the mode alone.
func inherit(f *os.File, old string, mode fs.FileMode) error {
	info, err := os.Lstat(old)
	if errors.Is(err, os.ErrNotExist) {
		return f.Chmod(mode.Perm())
	}
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return &os.PathError{Op: "replace", Path: old, Err: errors.New("not a regular file")}
	}
	st := info.Sys().(*syscall.Stat_t) //nolint:forcetypeassert // Lstat on Linux
	if err := f.Chown(int(st.Uid), int(st.Gid)); err != nil {
		return err
	}
	if err := f.Chmod(mode.Perm()); err != nil {
		return err
	}
	return copyXattrs(old, f.Name())
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
