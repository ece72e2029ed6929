package steps

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

// Whatever fails, its reader is told what to do; who has given a hint is not
// spoken over.
func TestSymptomHint(t *testing.T) {
	file := func(errno error) error {
		return fmt.Errorf("install: %w", &os.PathError{Op: "write", Path: "/opt/cni/bin/.bridge.tmp", Err: errno})
	}
	for _, tc := range []struct {
		err  error
		want string
	}{
		{file(syscall.ENOSPC), "df -h /opt/cni/bin"},
		{file(syscall.EDQUOT), "df -i /opt/cni/bin"},
		{file(syscall.EROFS), "findmnt -T /opt/cni/bin: it has to be mounted writable"},
		{file(syscall.EPERM), "lsattr -d /opt/cni/bin"},
		{file(syscall.EIO), "dmesg"},
		{&os.LinkError{Op: "rename", Old: "/a/b", New: "/c/d", Err: syscall.EROFS}, "findmnt -T /c"},
		{&RolledBackError{Err: &hostexec.JobError{Verb: "start", Unit: "kubelet.service", Result: "failed"}}, "journalctl -n 100 -u kubelet.service"},
		{&hostexec.CommandError{Argv: []string{"/usr/bin/kubeadm", "version"}, Code: 1, Err: errors.New("exit status 1")}, "/usr/bin/kubeadm"},
		{errors.New("who knows"), "upgrader status"},
		{&HintError{Err: file(syscall.ENOSPC), Hint: "its own"}, "its own"},
	} {
		hints := Hints(&StepError{Step: "s", Err: tc.err})
		if len(hints) != 1 || !strings.Contains(hints[0], tc.want) {
			t.Errorf("%v: %q, want %q", tc.err, hints, tc.want)
		}
	}
	for _, err := range []error{nil, &UsageError{"no"}, &BlockedError{Blocks: []Block{{Reason: "no"}}}} {
		if hints := Hints(err); len(hints) > 0 {
			t.Errorf("%v: %q", err, hints)
		}
	}
}
