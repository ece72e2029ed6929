package hostexec

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Enter moves the calling process into the IPC, UTS, network and mount
// namespaces of process pid (1 in a pod with hostPID) and executes its own
// program again there, with argv and env. Descriptors in keep stay open under
// their numbers. On success it does not return.
//
// The program is executed by descriptor, so that it needs to exist in the
// image only. setns(2) into a mount namespace wants a thread that shares its
// file system attributes with no other, hence the lock and unshare(CLONE_FS).
func Enter(pid int, argv, env []string, keep ...*os.File) error {
	runtime.LockOSThread() // never unlocked: after a failure half-way the thread must die with its process
	self, err := unix.Open("/proc/self/exe", unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open own executable: %w", err)
	}
	kinds := []struct {
		name string
		flag int
	}{{"ipc", unix.CLONE_NEWIPC}, {"uts", unix.CLONE_NEWUTS}, {"net", unix.CLONE_NEWNET}, {"mnt", unix.CLONE_NEWNS}}
	fds := make([]int, len(kinds))
	for i, k := range kinds {
		path := fmt.Sprintf("/proc/%d/ns/%s", pid, k.name)
		if fds[i], err = unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
			return fmt.Errorf("open %s (the pod needs hostPID and privileged): %w", path, err)
		}
	}
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare file system attributes: %w", err)
	}
	for i, k := range kinds {
		if err := unix.Setns(fds[i], k.flag); err != nil {
			return fmt.Errorf("enter the %s namespace of process %d: %w", k.name, pid, err)
		}
	}
	for _, f := range keep {
		if _, err := unix.FcntlInt(f.Fd(), unix.F_SETFD, 0); err != nil {
			return fmt.Errorf("keep descriptor %d: %w", f.Fd(), err)
		}
	}
	return fmt.Errorf("execute self on the host: %w", execveat(self, argv, env))
}

func execveat(fd int, argv, env []string) error {
	path, err := unix.BytePtrFromString("")
	if err != nil {
		return err
	}
	argvp, err := syscall.SlicePtrFromStrings(argv)
	if err != nil {
		return err
	}
	envp, err := syscall.SlicePtrFromStrings(env)
	if err != nil {
		return err
	}
	return rawExecveat(fd, path, argvp, envp)
}

// InHostMountNamespace tells whether this process already sees the host's
// files, that is shares process 1's mount namespace.
func InHostMountNamespace() (bool, error) {
	own, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return false, err
	}
	host, err := os.Readlink("/proc/1/ns/mnt")
	if err != nil {
		return false, fmt.Errorf("read process 1's namespaces (run as root): %w", err)
	}
	return own == host, nil
}

// WithEnv returns env with each KEY=value of set in place of an older one.
func WithEnv(env []string, set ...string) []string {
	env = slices.Clone(env)
	for _, kv := range set {
		key, _, _ := strings.Cut(kv, "=")
		env = slices.DeleteFunc(env, func(e string) bool { return strings.HasPrefix(e, key+"=") })
		env = append(env, kv)
	}
	return env
}
