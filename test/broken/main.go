// Command broken is a program of a node that is well until systemd starts it as
// a service: then it fails in a way that was chosen when it was made. Called by
// anybody else it is the real program: so it says its version, dumps its
// configuration and passes any trial.
//
// The real program lies behind this one in the same file, and after it the
// trailer: the way to fail, padded with blanks to 16 bytes, and the real
// program's size in 8 bytes, little-endian. Package payload makes such files.
package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	trailer = 24
	// lives is how long the real program goes on before a crash.
	lives = 2 * time.Second
	// socket is containerd's: it is there, and nobody answers.
	socket = "/run/containerd/containerd.sock"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "broken:", err)
		os.Exit(1)
	}
}

func run() error {
	program, fails, err := unpack()
	if err != nil {
		return err
	}
	defer program.Close()
	path := fmt.Sprintf("/proc/self/fd/%d", program.Fd())
	if os.Getppid() != 1 {
		return syscall.Exec(path, os.Args, os.Environ())
	}
	switch fails {
	case "exit":
		return errors.New("this program does not start")
	case "hang":
		return hang()
	case "crash":
		return crash(path)
	}
	return fmt.Errorf("no way to fail %q", fails)
}

// unpack copies the real program into memory, and tells in which way this one
// fails.
func unpack() (program *os.File, fails string, err error) {
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		return nil, "", err
	}
	defer self.Close()
	info, err := self.Stat()
	if err != nil {
		return nil, "", err
	}
	var end [trailer]byte
	if _, err := self.ReadAt(end[:], info.Size()-trailer); err != nil {
		return nil, "", err
	}
	size := int64(binary.LittleEndian.Uint64(end[16:]))
	fd, err := unix.MemfdCreate("real", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, "", fmt.Errorf("memfd_create: %w", err)
	}
	program = os.NewFile(uintptr(fd), "real")
	_, err = io.Copy(program, io.NewSectionReader(self, info.Size()-trailer-size, size))
	return program, strings.TrimSpace(string(end[:16])), err
}

// hang says that it is ready, listens, never answers and does not end when it
// is asked to.
func hang() error {
	signal.Ignore(unix.SIGTERM)
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	var d net.ListenConfig
	l, err := d.Listen(context.Background(), "unix", socket)
	if err != nil {
		return err
	}
	defer l.Close()
	if err := ready(); err != nil {
		return err
	}
	for {
		time.Sleep(time.Hour)
	}
}

// ready tells systemd what sd_notify(3) tells.
func ready() error {
	name := os.Getenv("NOTIFY_SOCKET")
	if name == "" {
		return nil
	}
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.Write([]byte("READY=1"))
	return err
}

// crash runs the real program for a moment.
func crash(program string) error {
	ctx, cancel := context.WithTimeout(context.Background(), lives)
	defer cancel()
	cmd := exec.CommandContext(ctx, program)
	cmd.Args, cmd.Stdout, cmd.Stderr = os.Args, os.Stdout, os.Stderr
	err := cmd.Run()
	return fmt.Errorf("this program crashes after %s: %w", lives, err)
}
