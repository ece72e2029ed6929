package steps

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"time"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

// otherKubelets are the reasons not to replace this kubelet: there is another
// one, as a file on the PATH or as a process, and nobody but the node's
// administrator knows which of them the node is to have.
func otherKubelets(ctx context.Context, env Env, found kubeletFound) ([]Block, error) {
	ours, err := env.Host.FS.Target(found.kubelet.Dest)
	if err != nil {
		return nil, err
	}
	files, err := otherKubeletFiles(env.Host.FS, found.kubelet.Dest, ours)
	if err != nil {
		return nil, err
	}
	running, err := otherKubeletProcesses(ctx, env, found.unit, ours)
	return append(files, running...), err
}

// otherKubeletFiles looks where a shell and kubeadm do. What leads to the
// unit's program is the same kubelet; a hard link to it is not, since it stays
// the old one when that is replaced.
func otherKubeletFiles(host hostexec.FS, program, ours string) ([]Block, error) {
	our, err := host.Stat(program)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	var blocks []Block
	seen := map[string]bool{ours: true}
	for _, dir := range append(toolDirs(), "/sbin", "/bin") {
		other := path.Join(dir, "kubelet")
		target, err := host.Target(other)
		if err != nil {
			return nil, err
		}
		info, err := host.Stat(other)
		if errors.Is(err, os.ErrNotExist) || seen[target] {
			continue
		}
		if err != nil {
			return nil, err
		}
		if !info.Mode().IsRegular() || info.Mode()&0o111 == 0 {
			continue
		}
		seen[target] = true
		what := "is another one, which would stay as it is and which kubeadm may find on its PATH"
		if our != nil && os.SameFile(our, info) {
			what = "is a hard link to it, which would stay the old one"
		}
		blocks = append(blocks, Block{
			Reason: fmt.Sprintf("two kubelets: %s starts %s, and %s %s", kubeletUnit, program, other, what),
			Hint:   fmt.Sprintf("systemctl cat %s; if %s is the right one: ln -sf %s %s", kubeletUnit, program, program, other),
		})
	}
	return blocks, nil
}

// kubeletLinger is longer than a child of the kubelet takes to become what it is
// to be, or a call of `kubelet --version`.
const kubeletLinger = 2 * time.Second

// otherKubeletProcesses are those that stay: the main process of the unit
// aside, and those in containers.
func otherKubeletProcesses(ctx context.Context, env Env, unit hostexec.Unit, ours string) ([]Block, error) {
	found, err := kubeletProcesses(env.Host.FS)
	if err != nil {
		return nil, err
	}
	var blocks []Block
	if p, ok := found[unit.MainPID]; ok && unit.MainPID != 0 {
		delete(found, unit.MainPID)
		if p.program != ours {
			blocks = append(blocks, Block{
				Reason: fmt.Sprintf("two kubelets: %s starts %s, but what runs is %s", kubeletUnit, ours, p.program),
				Hint:   fmt.Sprintf("systemctl cat %s; when that is what it should start: systemctl restart %s", kubeletUnit, kubeletUnit),
			})
		}
	}
	if len(found) == 0 {
		return blocks, nil
	}
	if err := env.Clock.Sleep(ctx, kubeletLinger); err != nil {
		return nil, err
	}
	still, err := kubeletProcesses(env.Host.FS)
	if err != nil {
		return nil, err
	}
	for pid, p := range found {
		if still[pid] != p {
			continue
		}
		blocks = append(blocks, Block{
			Reason: fmt.Sprintf("two kubelets: process %d runs %s, and is not that of %s", pid, p.program, kubeletUnit),
			Hint:   fmt.Sprintf("systemctl status %d; stop what started it", pid),
		})
	}
	return blocks, nil
}

// kubeletProcess is a process; the same id may be another one's later.
type kubeletProcess struct {
	program string
	ticks   uint64
}

// kubeletProcesses are the host's processes that run a program named kubelet.
// One with other mounts than the host's first process is in a container, and no
// kubelet of this node.
func kubeletProcesses(host hostexec.FS) (map[int]kubeletProcess, error) {
	entries, err := host.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	mounts := mountNamespace(host, 1)
	found := map[int]kubeletProcess{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || !e.IsDir() {
			continue
		}
		program, err := host.Program(pid)
		if err != nil || path.Base(program) != "kubelet" {
			continue // it has ended, or it is none
		}
		if own := mountNamespace(host, pid); mounts != "" && own != "" && own != mounts {
			continue
		}
		ticks, err := startTicks(host, pid)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		found[pid] = kubeletProcess{program, ticks}
	}
	return found, nil
}

// mountNamespace names a process's mounts, "" where that cannot be told.
func mountNamespace(host hostexec.FS, pid int) string {
	text, err := host.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", pid))
	if err != nil {
		return ""
	}
	return text
}
