package steps

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/node-upgrader/node-upgrader/hostexec"
	"github.com/node-upgrader/node-upgrader/hostexec/hostexectest"
	"github.com/node-upgrader/node-upgrader/image"
	"github.com/node-upgrader/node-upgrader/steps/cri"
	"github.com/node-upgrader/node-upgrader/steps/cri/critest"
)

// containerdNode is a node with a containerd whose binary's content says what
// it is: "containerd 1.7.35" starts and answers that version, "containerd
// 2.3.7 hangs" starts and never answers, "containerd 2.3.7 fails" does not
// start. At each start it throws away what its shims find no process of.
type containerdNode struct {
	t        *testing.T
	root     string
	env      Env
	units    *hostexectest.Units
	commands *hostexectest.Commands
	runtime  *critest.Runtime
	log      *logLines
	// dumps are the configurations as the versions of containerd dump them; a
	// version that is not here rejects its configuration.
	dumps map[string]string
}

const oldDump = `
version = 2
[plugins."io.containerd.grpc.v1.cri".containerd]
default_runtime_name = "runc"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/opt/cni/bin"
`

const newDump = `
version = 4
[plugins.'io.containerd.cri.v1.runtime'.containerd]
default_runtime_name = 'runc'
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = 'io.containerd.runc.v2'
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
SystemdCgroup = true
[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ['/opt/cni/bin']
[plugins.'io.containerd.server.v1.grpc']
address = '/run/containerd/containerd.sock'
`

// newContainerdNode is a node with containerd 1.7.35 that runs, and a bundle
// with 2.3.7.
func newContainerdNode(t *testing.T) *containerdNode {
	t.Helper()
	dir, err := os.MkdirTemp("", "n") //nolint:usetesting // short: a socket's path has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	n := &containerdNode{
		t: t, root: filepath.Join(dir, "r"), commands: &hostexectest.Commands{},
		runtime: critest.New(critest.State{}), log: &logLines{},
		dumps: map[string]string{"1.7.35": oldDump, "2.3.7": newDump},
		units: hostexectest.NewUnits(hostexec.Unit{
			Name: containerdUnit, ActiveState: "inactive", KillMode: "process", MainPID: 0,
			ExecStart: [][]string{{"/usr/local/bin/containerd"}},
		}),
	}
	n.write("/usr/local/bin/containerd", "containerd 1.7.35", 0o755)
	n.write("/usr/local/bin/containerd-shim-runc-v2", "shim 1.7.35", 0o755)
	n.write("/usr/local/bin/ctr", "ctr 1.7.35", 0o755)
	n.write("/usr/local/sbin/runc", "runc 1.1.5", 0o755)
	n.write("/etc/containerd/config.toml", "version = 2\n", 0o644)
	n.env = Env{
		Host:    hostexec.Host{FS: hostexec.NewFS(n.root), Commands: n.commands, Units: n.units},
		Bundle:  n.bundle(filepath.Join(dir, "b")),
		Runtime: n.runtime.Dial, Log: slog.New(slog.NewTextHandler(n.log, nil)),
		Clock: shortClock(),
	}
	n.env.Record = NewRecord(n.env.Host.FS, "run")
	n.commands.On("containerd", n.containerd)
	n.units.OnStart(containerdUnit, n.start)
	n.units.OnStop(containerdUnit, func() error {
		n.runtime.Change(func(s *critest.State) { s.Version = "" })
		return nil
	})
	if err := n.units.Start(t.Context(), containerdUnit); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if open := n.runtime.Open(); open != 0 {
			t.Errorf("%d clients of the runtime were not closed", open)
		}
	})
	return n
}

// bundle writes a bundle of what the node is to be upgraded to.
func (n *containerdNode) bundle(dir string) *image.Bundle {
	b := &image.Bundle{Dir: dir}
	b.Manifest.Components = []image.Component{
		{Name: image.Containerd, Version: "v2.3.7"}, {Name: image.Runc, Version: "v1.3.4"}, {Name: image.CNIPlugins, Version: "v1.9.1"},
	}
	add := func(component, name, place, content string) {
		n.must(os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		n.must(os.WriteFile(filepath.Join(dir, name), []byte(content), 0o755))
		b.Manifest.Files = append(b.Manifest.Files, image.File{
			Path: name, Component: component, Place: place, SHA256: sum(content), Size: int64(len(content)), Mode: 0o755,
		})
	}
	add(image.Containerd, "bin/containerd", "/usr/local/bin/containerd", "containerd 2.3.7")
	add(image.Containerd, "bin/containerd-shim-runc-v2", "/usr/local/bin/containerd-shim-runc-v2", "shim 2.3.7")
	add(image.Containerd, "bin/ctr", "/usr/local/bin/ctr", "ctr 2.3.7")
	add(image.Runc, "bin/runc", "/usr/local/sbin/runc", "runc 1.3.4")
	add(image.CNIPlugins, "cni/bridge", "/opt/cni/bin/bridge", "CNI bridge plugin v1.9.1")
	add(image.CNIPlugins, "cni/portmap", "/opt/cni/bin/portmap", "CNI portmap plugin v1.9.1")
	return b
}

// spoil changes the content of the bundle's containerd.
func (n *containerdNode) spoil(content string) {
	const name = "bin/containerd"
	for i, f := range n.env.Bundle.Manifest.Files {
		if f.Path == name {
			n.must(os.WriteFile(filepath.Join(n.env.Bundle.Dir, name), []byte(content), 0o755))
			n.env.Bundle.Manifest.Files[i].SHA256, n.env.Bundle.Manifest.Files[i].Size = sum(content), int64(len(content))
		}
	}
}

// containerd is the program: it says its version and dumps its configuration.
func (n *containerdNode) containerd(c hostexec.Command) (string, error) {
	file := c.Argv[0]
	if !strings.HasPrefix(file, n.env.Bundle.Dir) {
		file = filepath.Join(n.root, file)
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	version := strings.Fields(string(content))[1]
	if c.Argv[1] == "--version" {
		return "containerd github.com/containerd/containerd v" + version + " 0000", nil
	}
	dump, ok := n.dumps[version]
	if !ok || c.Argv[len(c.Argv)-1] != "dump" {
		return "", errors.New("containerd: invalid disabled plugin URI")
	}
	return dump, nil
}

// start is what systemd does with the program that lies there.
func (n *containerdNode) start(pid int) error {
	content := n.read("/usr/local/bin/containerd")
	if strings.Contains(content, "fails") {
		return &hostexec.JobError{Verb: "start", Unit: containerdUnit, Result: "failed"}
	}
	n.process(pid, uint64(pid), content)
	u, err := n.units.Show(context.Background(), containerdUnit)
	if err != nil {
		return err
	}
	u.MainPID, u.ActiveState = pid, "active"
	n.units.Put(u)
	if strings.Contains(content, "hangs") {
		return nil
	}
	n.runtime.Change(func(s *critest.State) {
		s.Version = strings.Fields(content)[1]
		s.Containers = slices.DeleteFunc(s.Containers, func(c cri.Container) bool {
			return n.home(c.ID) != "" && strings.TrimSpace(n.read(n.home(c.ID)+"/cgroup.procs")) == ""
		})
	})
	return nil
}

// process makes a process with a program of this content.
func (n *containerdNode) process(pid int, started uint64, content string) {
	n.write(fmt.Sprintf("/proc/%d/exe", pid), content, 0o755)
	n.write(fmt.Sprintf("/proc/%d/stat", pid), fmt.Sprintf("%d (a) name) S 1%s %d 0", pid, strings.Repeat(" 0", 17), started), 0o444)
}

// home is the devices cgroup of a container that has a shim, "" without one.
func (n *containerdNode) home(id string) string {
	data, err := os.ReadFile(filepath.Join(n.root, "run/containerd/runc/k8s.io", id, "state.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	n.must(err)
	var s runcState
	n.must(json.Unmarshal(data, &s))
	return s.home()
}

func (n *containerdNode) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

func (n *containerdNode) write(path, content string, mode fs.FileMode) {
	n.t.Helper()
	n.must(os.MkdirAll(filepath.Dir(filepath.Join(n.root, path)), 0o755))
	n.must(os.WriteFile(filepath.Join(n.root, path), []byte(content), mode))
}

func (n *containerdNode) read(path string) string {
	n.t.Helper()
	data, err := os.ReadFile(filepath.Join(n.root, path))
	if errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	n.must(err)
	return string(data)
}

// installed is what lies where, by name.
func (n *containerdNode) installed() map[string]string {
	files := map[string]string{}
	for _, p := range []string{
		"/usr/local/bin/containerd", "/usr/local/bin/containerd-shim-runc-v2",
		"/usr/local/bin/ctr", "/usr/local/sbin/runc",
	} {
		files[filepath.Base(p)] = n.read(p)
	}
	return files
}

func (n *containerdNode) check() State {
	n.t.Helper()
	state, err := checkContainerd(n.t.Context(), n.env)
	n.must(err)
	return state
}

func sum(content string) string {
	s := sha256.Sum256([]byte(content))
	return hex.EncodeToString(s[:])
}

// container adds a container that runs to what CRI knows.
func (n *containerdNode) container(id, pod, name string, pid int) cri.Container {
	c := cri.Container{
		ID: id, Namespace: "kube-system", Pod: pod, Name: name, Sandbox: name == "", PID: pid, Started: uint64(pid) * 10,
	}
	n.process(pid, c.Started, strconv.Itoa(pid))
	n.runtime.Change(func(s *critest.State) { s.Containers = append(s.Containers, c) })
	return c
}
