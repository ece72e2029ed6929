package hostexec

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Program is the host's path of the program that process pid runs, as it was
// when the process started: another file may lie there now. It is "" for a
// process without a program of its own, a kernel's thread.
func (fs FS) Program(pid int) (string, error) {
	text, err := os.Readlink(filepath.Join(fs.root, "proc", fmt.Sprint(pid), "exe"))
	if errors.Is(err, syscall.EINVAL) {
		return "", nil
	}
	if err != nil {
		return "", fs.named(err)
	}
	return fs.HostPath(strings.TrimSuffix(text, " (deleted)")), nil
}
