// Package cache keeps what the proving ground builds, outside the checkout.
//
// Everything lives under Root, which is ${XDG_CACHE_HOME:-~/.cache}/node-upgrader,
// as Root/KIND/HASH: one directory for each thing, named by a hash of what it
// is made from. A directory that is there is whole: it was built beside its
// final name and renamed into place. Nothing in it is changed afterwards; a
// caller that wants to write copies it first. Removing any of it, or all of it,
// is safe while nothing runs and only costs the time to build it again.
package cache

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Root is the cache's directory. It need not exist yet; it is the empty string
// only if there is neither XDG_CACHE_HOME nor a home directory.
func Root() string {
	dir, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "node-upgrader")
}

// Path is where Dir puts the thing of this kind and key, built or not.
func Path(kind, key string) string {
	sum := sha256.Sum256([]byte(key))
	return filepath.Join(Root(), kind, hex.EncodeToString(sum[:10]))
}

// Dir returns the directory of the thing of this kind (a file name) and key
// (any text: all that decides the result, as source, versions and flags). If it
// is not there it calls build with an empty temporary directory, and renames
// that into place when build returns nil. A build that fails leaves nothing.
//
// Two processes, or goroutines, never build the same thing at once: the second
// waits, says so on standard error, and then finds the first one's result. What
// a killed build left behind is removed by the next one.
func Dir(kind, key string, build func(tmp string) error) (path string, err error) {
	return DirContext(context.Background(), kind, key, build)
}

// DirContext is Dir for a caller whose wait for another process can be ended.
// The context does not reach build, which has its own.
func DirContext(ctx context.Context, kind, key string, build func(tmp string) error) (path string, err error) {
	return dir(ctx, os.Stderr, kind, key, build)
}

func dir(ctx context.Context, says io.Writer, kind, key string, build func(tmp string) error) (string, error) {
	if Root() == "" {
		return "", errors.New("cache: neither XDG_CACHE_HOME nor HOME is set")
	}
	if kind == "" || kind != filepath.Base(kind) || kind[0] == '.' {
		return "", fmt.Errorf("cache: kind %q is not a file name", kind)
	}
	path := Path(kind, key)
	if isDir(path) {
		return path, nil
	}
	parent, name := filepath.Split(path)
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return "", fmt.Errorf("cache: %w", err)
	}
	// The lock file stays: removing it would let two builders hold a lock each.
	unlock, err := lock(ctx, says, filepath.Join(parent, "."+name+".lock"), kind)
	if err != nil {
		return "", fmt.Errorf("cache: %w", err)
	}
	defer unlock()
	if isDir(path) {
		return path, nil
	}
	// The lock is ours, so every temporary directory of this thing was left by a
	// builder that was killed. A new name keeps away what a child of that builder
	// may still write.
	tmp := filepath.Join(parent, "."+name+".tmp-")
	left, err := filepath.Glob(tmp + "*")
	if err != nil {
		return "", fmt.Errorf("cache: %w", err)
	}
	for _, old := range left {
		if err := os.RemoveAll(old); err != nil {
			return "", fmt.Errorf("cache: remove what a killed build left: %w", err)
		}
	}
	if tmp, err = os.MkdirTemp(parent, filepath.Base(tmp)); err != nil {
		return "", fmt.Errorf("cache: %w", err)
	}
	if err := os.Chmod(tmp, 0o755); err != nil {
		return "", fmt.Errorf("cache: %w", err)
	}
	done := false
	defer func() {
		if !done { // also when build panics or ends its goroutine
			_ = os.RemoveAll(tmp)
		}
	}()
	if err := build(tmp); err != nil {
		return "", err
	}
	if err := os.Rename(tmp, path); err != nil {
		return "", fmt.Errorf("cache: %w", err)
	}
	done = true
	return path, nil
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// lock takes an exclusive flock on file, which the kernel drops when its holder
// dies. It polls, so that a wait can be ended.
func lock(ctx context.Context, says io.Writer, file, kind string) (unlock func(), err error) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return nil, err
	}
	for said := false; ; {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			_ = f.Close()
			return nil, fmt.Errorf("lock %s: %w", file, err)
		}
		if !said {
			_, _ = fmt.Fprintf(says, "waiting for another process that makes the same %s (lock %s)\n", kind, file)
			said = true
		}
		select {
		case <-ctx.Done():
			_ = f.Close()
			return nil, fmt.Errorf("lock %s: %w", file, context.Cause(ctx))
		case <-time.After(100 * time.Millisecond):
		}
	}
}
