package hostexec

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// rawExecveat is execveat(2) with AT_EMPTY_PATH, which neither os nor x/sys
// wraps. The kernel ends the process's other threads.
func rawExecveat(fd int, path *byte, argv, env []*byte) error {
	_, _, errno := unix.RawSyscall6(unix.SYS_EXECVEAT, uintptr(fd),
		uintptr(unsafe.Pointer(path)), uintptr(unsafe.Pointer(&argv[0])), uintptr(unsafe.Pointer(&env[0])),
		unix.AT_EMPTY_PATH, 0)
	return errno
}
