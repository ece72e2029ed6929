package steps

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"syscall"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

// symptomHint is what to do about an error that nobody has given a hint to, by
// what it is at the bottom: a disk that cannot be written to, or a service.
func symptomHint(err error) string {
	var (
		job     *hostexec.JobError
		command *hostexec.CommandError
		step    *StepError
	)
	switch file := pathOf(err); {
	case file == "":
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return "df -h " + file + "; df -i " + file + ": free some room there"
	case errors.Is(err, syscall.EROFS):
		return "findmnt -T " + file + ": it has to be mounted writable (dmesg tells whether an error made it read-only)"
	case errors.Is(err, fs.ErrPermission):
		return "lsattr -d " + file + " and findmnt -T " + file + " show whether it is immutable or read-only"
	case errors.Is(err, syscall.EIO):
		return "dmesg: the disk below " + file + " has errors"
	}
	if errors.As(err, &job) {
		return "systemctl status " + job.Unit + "; journalctl -n 100 -u " + job.Unit
	}
	if errors.As(err, &command) {
		return "run it by hand: " + command.Argv[0]
	}
	hint := "run the same command again when the cause is mended"
	if errors.As(err, &step) { // and not, say, a bundle that cannot be built
		hint += "; upgrader status shows where the node stands"
	}
	return hint
}

// pathOf is the directory of the file that an error is about, "" without one.
func pathOf(err error) string {
	var (
		file *os.PathError
		link *os.LinkError
	)
	switch {
	case errors.As(err, &file):
		return path.Dir(file.Path)
	case errors.As(err, &link):
		return path.Dir(link.New)
	}
	return ""
}
