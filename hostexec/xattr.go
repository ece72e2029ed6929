package hostexec

import (
	"errors"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// xattrSizeMax is the largest value of an extended attribute (XATTR_SIZE_MAX).
const xattrSizeMax = 1 << 16

// evm is the kernel's own seal over one inode, which nobody else can write.
const evm = "security.evm"

// copyXattrs gives the file at to the extended attributes of the one at from,
// and no others. Neither is followed when it is a link. An attribute that the
// file system of to does not know is an error.
func copyXattrs(from, to string) error {
	names, err := listXattrs(from)
	if err != nil {
		return err
	}
	for _, name := range names {
		if name == evm {
			continue
		}
		value := make([]byte, xattrSizeMax)
		n, err := unix.Lgetxattr(from, name, value)
		if err != nil {
			return &os.PathError{Op: "getxattr " + name, Path: from, Err: err}
		}
		if err := unix.Lsetxattr(to, name, value[:n], 0); err != nil {
			return &os.PathError{Op: "setxattr " + name, Path: to, Err: err}
		}
	}
	extra, err := listXattrs(to)
	if err != nil {
		return err
	}
	for _, name := range extra {
		// A new file gets an ACL from its directory; its label is the kernel's.
		if slices.Contains(names, name) || strings.HasPrefix(name, "security.") {
			continue
		}
		if err := unix.Lremovexattr(to, name); err != nil && !errors.Is(err, unix.ENODATA) {
			return &os.PathError{Op: "removexattr " + name, Path: to, Err: err}
		}
	}
	return nil
}

// listXattrs is empty where the file system has no extended attributes.
func listXattrs(path string) ([]string, error) {
	size, err := unix.Llistxattr(path, nil)
	if size == 0 || errors.Is(err, unix.ENOTSUP) {
		return nil, nil
	}
	if err != nil {
		return nil, &os.PathError{Op: "listxattr", Path: path, Err: err}
	}
	names := make([]byte, size)
	if size, err = unix.Llistxattr(path, names); err != nil {
		return nil, &os.PathError{Op: "listxattr", Path: path, Err: err}
	}
	return slices.DeleteFunc(strings.Split(string(names[:size]), "\x00"), func(name string) bool { return name == "" }), nil
}
