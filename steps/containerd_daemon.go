package steps

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"github.com/node-upgrader/node-upgrader/hostexec"
	"github.com/node-upgrader/node-upgrader/image"
)

// containerdUnit is the name of containerd's service on every distribution and
// in containerd's own releases.
const containerdUnit = "containerd.service"

// containerdDaemon is the node's containerd as its unit defines it.
type containerdDaemon struct {
	unit   hostexec.Unit
	binary string // what ExecStart starts, links followed
	config string // its configuration file, which need not exist
	path   []string
	// socket and state are of ExecStart's flags, "" without them.
	socket, state string
}

// errNoUnit means that systemd does not know containerd's unit.
var errNoUnit = errors.New("systemd has no unit " + containerdUnit)

// findContainerd reads the unit. errNoUnit when there is none.
func findContainerd(ctx context.Context, host hostexec.Host) (containerdDaemon, error) {
	unit, err := host.Units.Show(ctx, containerdUnit)
	if err != nil {
		return containerdDaemon{}, err
	}
	if !unit.Exists() {
		return containerdDaemon{}, errNoUnit
	}
	binary, err := unit.Binary()
	if err != nil {
		return containerdDaemon{}, err
	}
	d := containerdDaemon{unit: unit, config: "/etc/containerd/config.toml"}
	if d.path, err = daemonPath(host.FS, unit); err != nil {
		return d, err
	}
	if !path.IsAbs(binary) {
		found, err := lookPath(host.FS, d.path, binary)
		if err != nil {
			return d, err
		}
		if found == "" {
			return d, fmt.Errorf("%s: %s is not in %s", unit.Name, binary, strings.Join(d.path, ":"))
		}
		binary = found
	}
	real, err := host.FS.Resolve(binary)
	if err != nil {
		return d, err
	}
	d.binary = host.FS.HostPath(real)
	args, err := unitArgs(host.FS, unit, nil)
	if err != nil {
		return d, err
	}
	for flag, value := range map[string]*string{"config c": &d.config, "address a": &d.socket, "state": &d.state} {
		if v, ok := flagValue(args, strings.Fields(flag)...); ok {
			*value = v
		}
	}
	return d, nil
}

// flagValue is the last value of a flag, whichever of its names and of the
// forms -f v, -f=v, --f v and --f=v is used.
func flagValue(args []string, names ...string) (value string, found bool) {
	for i, arg := range args {
		for _, name := range names {
			rest, ok := strings.CutPrefix(strings.TrimPrefix(arg, "-"), "-")
			if !ok {
				rest, ok = strings.CutPrefix(arg, "-")
			}
			if !ok {
				continue
			}
			if v, isValue := strings.CutPrefix(rest, name+"="); isValue {
				value, found = v, true
			} else if rest == name && i+1 < len(args) {
				value, found = args[i+1], true
			}
		}
	}
	return value, found
}

// daemonPath is where the daemon looks for programs: the running one's own
// environment, since that is what counts, else what its unit says.
func daemonPath(host hostexec.FS, unit hostexec.Unit) ([]string, error) {
	env := unit.Environment
	if unit.MainPID > 0 {
		running, err := host.ReadFile(fmt.Sprintf("/proc/%d/environ", unit.MainPID))
		if err == nil {
			env = strings.Split(string(running), "\x00")
		} else if !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
	}
	// systemd's own for system services.
	dirs := "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin"
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, "PATH="); ok && v != "" {
			dirs = v
		}
	}
	return strings.Split(dirs, ":"), nil
}

// lookPath is the first program of this name in dirs, "" when there is none.
func lookPath(host hostexec.FS, dirs []string, name string) (string, error) {
	for _, dir := range dirs {
		if !path.IsAbs(dir) {
			continue
		}
		p := path.Join(dir, name)
		info, err := host.Stat(p)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return "", err
		}
		if info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return p, nil
		}
	}
	return "", nil
}

// placeContainerd says where on this host each of the bundle's files goes that
// containerd is made of.
//
// containerd itself is what the unit starts. The shim is the one that the
// daemon would find for a new pod: the runtime's runtime_path, else the PATH,
// else beside the daemon (resolveRuntimePath in containerd's
// core/runtime/v2/shim_manager.go). runc is the one that the shims execute: the
// runtime's BinaryName, else the PATH. What is not there yet goes beside
// containerd, and runc where its own releases put it.
func placeContainerd(env Env, d containerdDaemon, c containerdConfig) ([]placed, error) {
	beside := func(name string) string { return path.Join(path.Dir(d.binary), name) }
	files := append(env.Bundle.ComponentFiles(image.Containerd), env.Bundle.ComponentFiles(image.Runc)...)
	out := make([]placed, 0, len(files))
	for _, f := range files {
		configured, fallback := "", beside(f.Name())
		switch {
		case f.Name() == "containerd":
			configured = d.binary
		case f.Name() == "runc":
			configured, fallback = c.program("runc", runtime.binaryName), "/usr/local/sbin/runc"
		case strings.HasPrefix(f.Name(), "containerd-shim"):
			configured = c.program(f.Name(), runtime.runtimePath)
		}
		dest := configured
		if dest == "" {
			found, err := lookPath(env.Host.FS, d.path, f.Name())
			if err != nil {
				return nil, err
			}
			if dest = found; dest == "" {
				dest = fallback
			}
		}
		out = append(out, placed{File: f, Dest: dest})
	}
	return out, nil
}

// ContainerdSocket is where the node's containerd listens: the unit's flag,
// else the configuration, else containerd's default. It is for Env.Runtime.
func ContainerdSocket(ctx context.Context, host hostexec.Host) (string, error) {
	d, err := findContainerd(ctx, host)
	if err != nil {
		return "", err
	}
	if d.socket != "" {
		return d.socket, nil
	}
	c, err := installedConfig(ctx, host, d)
	if err != nil {
		return "", err
	}
	return c.socket(), nil
}
