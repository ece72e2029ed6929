package hostexec

import (
	"os"

	"golang.org/x/sys/unix"
)

// SyncFS makes everything durable that was written to the file system that
// holds path, by whomever: for what programs write that do not fsync.
func (fs FS) SyncFS(path string) error {
	f, err := fs.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		return &os.PathError{Op: "syncfs", Path: path, Err: err}
	}
	return nil
}
