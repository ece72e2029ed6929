package hostexec

import (
	"errors"
	"os"
)

// WriteControl writes one value to a control file of the kernel, such as a
// cgroup's cgroup.procs, which has to be there. Such a file cannot be replaced:
// each write is a command.
func (fs FS) WriteControl(path, value string) error {
	real, err := fs.Resolve(path)
	if err != nil {
		return err
	}
	return fs.change(OpControl, real, func() (err error) {
		f, err := os.OpenFile(real, os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			return fs.named(err)
		}
		defer func() { err = errors.Join(err, f.Close()) }()
		_, err = f.WriteString(value + "\n")
		return fs.named(err)
	})
}
