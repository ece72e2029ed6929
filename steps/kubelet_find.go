package steps

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"sync"
	"syscall"

	"github.com/node-upgrader/node-upgrader/hostexec"
	"github.com/node-upgrader/node-upgrader/image"
)

// kubeletFound is the kubelet as it lies on the host and runs.
type kubeletFound struct {
	unit hostexec.Unit
	args []string // what its next start gets, the program's name aside
	// kubelet is the bundle's file; files is it with kubectl.
	kubelet placed
	files   []placed
	stale   []placed // those that are not on the host
	running string   // the running program's digest; "" when it does not run
}

// restart tells whether the kubelet has to be started with the bundle's file.
func (f kubeletFound) restart() bool { return f.running != f.kubelet.SHA256 || f.isStale(f.kubelet) }

func (f kubeletFound) isStale(file placed) bool {
	for _, s := range f.stale {
		if s.Dest == file.Dest {
			return true
		}
	}
	return false
}

// toInstall are the files of a swap: the kubelet in any case, so that what is
// started is known.
func (f kubeletFound) toInstall() []placed {
	files := []placed{f.kubelet}
	for _, s := range f.stale {
		if s.Dest != f.kubelet.Dest {
			files = append(files, s)
		}
	}
	return files
}

func (f kubeletFound) facts() []Fact {
	var facts []Fact
	for _, file := range f.files {
		have := "the bundle's"
		if f.isStale(file) {
			have = "another"
		}
		facts = append(facts, Fact{file.Dest, have, "the bundle's"})
	}
	have := "the bundle's"
	switch f.running {
	case f.kubelet.SHA256:
	case "":
		have = "nothing"
	default:
		have = "another"
	}
	return append(facts, Fact{kubeletUnit + " runs", have, "the bundle's"})
}

// find reads the unit, places the bundle's files and compares digests. What
// makes an upgrade of this kubelet impossible is a *BlockedError.
func (k *kubeletUpgrade) find(ctx context.Context, env Env) (kubeletFound, error) {
	unit, err := env.Host.Units.Show(ctx, kubeletUnit)
	if err != nil {
		return kubeletFound{}, err
	}
	f := kubeletFound{unit: unit}
	dest, err := kubeletPlace(env.Host.FS, unit)
	if err != nil {
		return f, err
	}
	file, ok := env.Bundle.File(image.Kubelet, "kubelet")
	if !ok {
		return f, errors.New("the bundle has no kubelet")
	}
	f.kubelet = placed{file, dest}
	f.files = []placed{f.kubelet}
	if file, ok := env.Bundle.File(image.Kubectl, "kubectl"); ok {
		// The one that is used, wherever it is; without one, where the
		// kubelet is.
		dest, err := onPath(env.Host.FS, "kubectl")
		if err != nil {
			return f, err
		}
		if dest == "" {
			dest = path.Join(path.Dir(f.kubelet.Dest), "kubectl")
		}
		f.files = append(f.files, placed{file, dest})
	}
	for _, file := range f.files {
		digest, err := k.digests.file(ctx, env.Host.FS, file.Dest)
		if err != nil {
			return f, err
		}
		if digest != file.SHA256 {
			f.stale = append(f.stale, file)
		}
	}
	if unit.MainPID != 0 {
		if f.running, err = k.digests.process(ctx, env.Host.FS, unit.MainPID); err != nil {
			return f, err
		}
	}
	f.args, err = unitArgs(env.Host.FS, unit, nil)
	return f, err
}

// kubeletPlace is the path of the program that the unit starts.
func kubeletPlace(host hostexec.FS, unit hostexec.Unit) (string, error) {
	block := func(reason, hint string) error {
		return &BlockedError{Blocks: []Block{{Reason: reason, Hint: hint}}}
	}
	if !unit.Exists() {
		return "", block("systemd has no unit "+kubeletUnit, "is this a node that kubeadm has set up? systemctl list-unit-files | grep -i kubelet")
	}
	if unit.LoadState == "masked" {
		return "", block(kubeletUnit+" is masked", "systemctl unmask "+kubeletUnit)
	}
	binary, err := unit.Binary()
	if err != nil {
		return "", block(err.Error(), "systemctl cat "+kubeletUnit)
	}
	if path.Base(binary) != "kubelet" {
		return "", block(kubeletUnit+" starts "+binary+", which is not a kubelet", "systemctl cat "+kubeletUnit)
	}
	if !path.IsAbs(binary) {
		found, err := onPath(host, binary)
		if err != nil {
			return "", err
		}
		if found == "" {
			return "", block(kubeletUnit+" starts "+binary+", which is nowhere on the PATH", "systemctl cat "+kubeletUnit)
		}
		return found, nil
	}
	return binary, nil
}

// digestMemo hashes each file and each process once: the drain, the kubelet
// and the uncordon all ask, and the files are large. A file that was changed
// or replaced has another inode or change time, and is another one.
type digestMemo struct {
	mu   sync.Mutex
	seen map[string]string
}

func (m *digestMemo) get(key string, hash func() (string, error)) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if digest, ok := m.seen[key]; ok {
		return digest, nil
	}
	digest, err := hash()
	if err != nil {
		return "", err
	}
	if m.seen == nil {
		m.seen = map[string]string{}
	}
	m.seen[key] = digest
	return digest, nil
}

// file is the digest of a file, "" when it is not there.
func (m *digestMemo) file(ctx context.Context, host hostexec.FS, file string) (string, error) {
	there, err := host.Exists(file)
	if err != nil || !there {
		return "", err
	}
	info, err := host.Stat(file)
	if err != nil {
		return "", err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return host.Digest(ctx, file)
	}
	key := fmt.Sprintf("file %d %d %d %d.%d", st.Dev, st.Ino, st.Size, st.Ctim.Sec, st.Ctim.Nsec)
	return m.get(key, func() (string, error) { return host.Digest(ctx, file) })
}

// process is the digest of the program that a process runs, "" when it is gone.
func (m *digestMemo) process(ctx context.Context, host hostexec.FS, pid int) (string, error) {
	ticks, err := startTicks(host, pid)
	if errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ESRCH) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	digest, err := m.get(fmt.Sprintf("process %d %d", pid, ticks), func() (string, error) { return host.ProcessDigest(ctx, pid) })
	if errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ESRCH) {
		return "", nil
	}
	return digest, err
}

// unitFiles names where a unit's command line comes from.
func unitFiles(u hostexec.Unit) string {
	files := append([]string{u.Fragment}, u.DropIns...)
	for _, f := range u.EnvFiles {
		files = append(files, f.Path)
	}
	return strings.Join(files, " ")
}
