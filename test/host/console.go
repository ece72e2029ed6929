package host

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// newConsole makes a pseudo terminal, as systemd wants one for /dev/console
// and logs nowhere else before its journal runs. What is written to it goes to
// log, until the machine's end of it is closed. The name is the machine's path
// of the host's end.
func newConsole(log io.Writer) (name string, err error) {
	f, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return "", fmt.Errorf("make console: %w", err)
	}
	number, err := unix.IoctlGetInt(int(f.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(f.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		f.Close()
		return "", fmt.Errorf("make console: %w", err)
	}
	name = fmt.Sprintf("/dev/pts/%d", number)
	// Held open here too, or the first close of the host's end ends the copy.
	host, err := os.OpenFile(name, os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		f.Close()
		return "", fmt.Errorf("make console: %w", err)
	}
	go func() {
		defer host.Close()
		defer f.Close()
		_, _ = io.Copy(log, f)
	}()
	return name, nil
}
