package host

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// runInit is the stage that is PID 1 of the new namespaces: it mounts the
// host's file systems, moves into them, makes sure of that, and becomes
// systemd. It returns only errors.
func runInit() error {
	status := os.NewFile(3, "status")
	unix.CloseOnExec(3)
	err := initialise()
	return errors.Join(err, reportError(err).write(status))
}

func initialise() error {
	runtime.LockOSThread() // PR_SET_PDEATHSIG is the thread's that executes
	if os.Getpid() != 1 {
		return fmt.Errorf("%w: PID %d is not the first of its namespace", ErrRefused, os.Getpid())
	}
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return fmt.Errorf("die with the keeper: %w", err)
	}
	in := bufio.NewReader(os.Stdin)
	line, err := in.ReadBytes('\n')
	if err != nil {
		return err
	}
	var spec bootSpec
	if err := json.Unmarshal(line, &spec); err != nil {
		return err
	}
	if _, err := in.ReadString('\n'); err != nil { // "go"
		return err
	}
	unix.Umask(0o022)
	root := filepath.Join(spec.Disk, "root")
	if err := mountAll(spec, root); err != nil {
		return err
	}
	var machine, want unix.Stat_t
	if err := errors.Join(unix.Stat("/", &machine), unix.Stat(root, &want)); err != nil {
		return err
	}
	if err := pivot(root); err != nil {
		return err
	}
	if err := verifyRoot("/", idOf(machine), idOf(want)); err != nil {
		return err
	}
	// systemd's own default; container runtimes below rely on it.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("share mounts: %w", err)
	}
	if err := unix.Sethostname([]byte(spec.Name)); err != nil {
		return err
	}
	if err := enableForwarding(); err != nil {
		return err
	}
	null, err := unix.Open("/dev/null", unix.O_RDWR, 0)
	if err != nil {
		return err
	}
	if err := unix.Dup2(null, 0); err != nil {
		return err
	}
	return fmt.Errorf("execute systemd: %w", unix.Exec("/lib/systemd/systemd",
		[]string{"/lib/systemd/systemd", "--log-target=console", "--show-status=no"},
		[]string{"container=throwaway", "PATH=" + searchPath}))
}

// fileID tells one directory from all others.
type fileID struct{ dev, ino uint64 }

func idOf(st unix.Stat_t) fileID { return fileID{st.Dev, st.Ino} }

// verifyRoot refuses unless root is the wanted directory, not the machine's,
// and has the marker.
func verifyRoot(root string, machine, want fileID) error {
	var st unix.Stat_t
	if err := unix.Stat(root, &st); err != nil {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	if idOf(st) != want {
		return fmt.Errorf("%w: %s is another directory than the one that was mounted", ErrRefused, root)
	}
	if idOf(st) == machine {
		return fmt.Errorf("%w: %s is the machine's own", ErrRefused, root)
	}
	text, err := os.ReadFile(filepath.Join(root, marker))
	if err != nil {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	if string(text) != markerText {
		return fmt.Errorf("%w: %s has another text", ErrRefused, marker)
	}
	return nil
}

func pivot(root string) error {
	if err := os.Chdir(root); err != nil {
		return err
	}
	// The old root is stacked on the new one, then taken away.
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot_root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("leave the machine's root: %w", err)
	}
	return os.Chdir("/")
}

func mountAll(spec bootSpec, root string) error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	m := mounter{root: root}
	m.mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "") // nothing reaches the machine
	m.mount("overlay", root, "overlay", 0, fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s",
		strings.Join(spec.Layers, ":"), filepath.Join(spec.Disk, "upper"), filepath.Join(spec.Disk, "work")))
	m.mount(filepath.Join(spec.Disk, "var"), m.in("var"), "", unix.MS_BIND, "")
	const safe = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	m.mount("proc", m.in("proc"), "proc", safe, "")
	m.readOnly(m.in("proc/sysrq-trigger"))
	m.mount("sysfs", m.in("sys"), "sysfs", safe, "")
	m.devices()
	m.console(spec.Console)
	m.mount("tmpfs", m.in("run"), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755")
	m.mount("tmpfs", m.in("tmp"), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777")
	m.cgroups(all)
	// What is written to /sys is the machine's.
	m.mount("", m.in("sys"), "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|safe, "")
	return m.err
}

// mounter does nothing more after the first error.
type mounter struct {
	root string
	err  error
}

func (m *mounter) in(name string) string { return filepath.Join(m.root, name) }

func (m *mounter) try(what string, err error) {
	if m.err == nil && err != nil {
		m.err = fmt.Errorf("%s: %w", what, err)
	}
}

func (m *mounter) mount(source, target, kind string, flags uintptr, data string) {
	if m.err == nil {
		m.try("mount "+kind+" on "+target, unix.Mount(source, target, kind, flags, data))
	}
}

func (m *mounter) mkdir(path string) {
	if m.err == nil {
		m.try("mkdir", os.MkdirAll(path, 0o755))
	}
}

// readOnly protects a file that not every kernel has.
func (m *mounter) readOnly(path string) {
	if _, err := os.Stat(path); err != nil {
		return
	}
	m.mount(path, path, "", unix.MS_BIND, "")
	m.mount("", path, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, "")
}

// devices fills /dev with nodes of the host's own: a changed mode or owner
// must not reach the machine's.
func (m *mounter) devices() {
	m.mount("tmpfs", m.in("dev"), "tmpfs", unix.MS_NOSUID|unix.MS_STRICTATIME, "mode=755")
	for _, d := range []struct {
		name         string
		mode         uint32
		major, minor uint32
	}{
		{"null", 0o666, 1, 3},
		{"zero", 0o666, 1, 5},
		{"full", 0o666, 1, 7},
		{"random", 0o666, 1, 8},
		{"urandom", 0o666, 1, 9},
		{"tty", 0o666, 5, 0},
		{"kmsg", 0o644, 1, 11}, // the kubelet reads it
		{"fuse", 0o666, 10, 229},
	} {
		if m.err != nil {
			return
		}
		path := m.in("dev/" + d.name)
		m.try("mknod "+path, unix.Mknod(path, unix.S_IFCHR|d.mode, int(unix.Mkdev(d.major, d.minor))))
		m.try("chmod "+path, unix.Chmod(path, d.mode))
	}
	m.mkdir(m.in("dev/pts"))
	m.mkdir(m.in("dev/shm"))
	m.mkdir(m.in("dev/mqueue"))
	m.mount("devpts", m.in("dev/pts"), "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, "newinstance,gid=5,mode=620,ptmxmode=666")
	m.mount("tmpfs", m.in("dev/shm"), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777")
	m.mount("mqueue", m.in("dev/mqueue"), "mqueue", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	for name, target := range map[string]string{
		"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2",
	} {
		if m.err == nil {
			m.try("link", os.Symlink(target, m.in("dev/"+name)))
		}
	}
}

// console makes the terminal that the keeper reads the host's console.
func (m *mounter) console(name string) {
	target := m.in("dev/console")
	if m.err == nil {
		m.try("make console", os.WriteFile(target, nil, 0o600))
	}
	m.mount(name, target, "", unix.MS_BIND, "")
}

// cgroups mounts the machine's hierarchies under the same names; the cgroup
// namespace makes the host's own cgroup their root.
func (m *mounter) cgroups(all []hierarchy) {
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	base := m.in("sys/fs/cgroup")
	if pure(all) {
		m.mount("cgroup2", base, "cgroup2", flags, "")
		return
	}
	m.mount("tmpfs", base, "tmpfs", flags, "mode=755")
	for _, h := range all {
		dir := filepath.Join(base, filepath.Base(h.Mount))
		m.mkdir(dir)
		if h.Unified {
			m.mount("cgroup2", dir, "cgroup2", flags, "")
			continue
		}
		options := strings.Join(h.Controllers, ",")
		if strings.HasPrefix(options, "name=") {
			options = "none," + options
		}
		m.mount("cgroup", dir, "cgroup", flags, options)
		for _, c := range h.Controllers { // cpu → cpu,cpuacct
			if m.err == nil && len(h.Controllers) > 1 {
				m.try("link", os.Symlink(filepath.Base(dir), filepath.Join(base, c)))
			}
		}
	}
}

// enableForwarding sets what Kubernetes asks of a node's network. The bridge
// settings exist only where the kernel has br_netfilter.
func enableForwarding() error {
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0); err != nil {
		return err
	}
	for _, name := range []string{"bridge-nf-call-iptables", "bridge-nf-call-ip6tables"} {
		err := os.WriteFile("/proc/sys/net/bridge/"+name, []byte("1"), 0)
		if err != nil && !os.IsNotExist(err) {
			return err
		}
	}
	return nil
}
