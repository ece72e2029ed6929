package hostexec

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// ErrLocked means that another process holds the lock.
var ErrLocked = errors.New("locked by another process")

// TryLock takes an exclusive lock on a file, which is made where it is not
// there and stays. The kernel gives the lock back when the process ends,
// however it ends. ErrLocked when somebody else has it.
func (fs FS) TryLock(path string) (unlock func(), err error) {
	real, err := fs.Resolve(path)
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(real, os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fs.named(err)
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = ErrLocked
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
	}
	return func() { _ = f.Close() }, nil
}
