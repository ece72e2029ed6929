package steps

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"

	"github.com/pelletier/go-toml/v2"

	"github.com/node-upgrader/node-upgrader/hostexec"
	"github.com/node-upgrader/node-upgrader/steps/cri"
)

// containerdConfig is a configuration as one version of containerd understands
// it, its imports and defaults included.
type containerdConfig struct{ root table }

// table is a part of a TOML document. A nil table has nothing in it.
type table map[string]any

func (t table) table(path ...string) table {
	for _, name := range path {
		t, _ = t[name].(map[string]any)
	}
	return t
}

func (t table) text(name string) string { s, _ := t[name].(string); return s }

// dumpConfig has a containerd binary read a configuration file and say what it
// makes of it. Its refusal is a *hostexec.CommandError. Nothing is changed:
// `config dump` registers the plugins but starts none.
func dumpConfig(ctx context.Context, host hostexec.Host, binary, file string) (containerdConfig, error) {
	out, err := ask(ctx, host, binary, "--config", file, "config", "dump")
	if err != nil {
		return containerdConfig{}, err
	}
	var c containerdConfig
	if err := toml.Unmarshal(out.Stdout, &c.root); err != nil {
		return c, fmt.Errorf("read what %s says of its configuration: %w", binary, err)
	}
	return c, nil
}

// configFileVersion is the version that the file itself declares: 1 without
// one, 0 without a file.
func configFileVersion(host hostexec.FS, file string) (int, error) {
	data, err := host.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	head := struct {
		Version int `toml:"version"`
	}{Version: 1}
	if err := toml.Unmarshal(data, &head); err != nil {
		return 0, fmt.Errorf("read %s: %w", file, err)
	}
	return head.Version, nil
}

// The plugins that make up CRI: one up to containerd 1.7, and since 2.0 one for
// containers and one for images.
const (
	criPlugin       = "io.containerd.grpc.v1.cri"
	criRuntime      = "io.containerd.cri.v1.runtime"
	criImages       = "io.containerd.cri.v1.images"
	grpcServer      = "io.containerd.server.v1.grpc"
	defaultStateDir = "/run/containerd"
)

// cri is the table of the plugin that runs containers.
func (c containerdConfig) cri() table {
	if t := c.root.table("plugins", criRuntime); t != nil {
		return t
	}
	return c.root.table("plugins", criPlugin)
}

// socket is where containerd listens; version 4 has it in a plugin of its own.
func (c containerdConfig) socket() string {
	for _, t := range []table{c.root.table("plugins", grpcServer), c.root.table("grpc")} {
		if a := t.text("address"); a != "" {
			return a
		}
	}
	return cri.DefaultSocket
}

// state is the directory of what does not outlive the machine's boot.
func (c containerdConfig) state() string {
	if s := c.root.text("state"); s != "" {
		return s
	}
	return defaultStateDir
}

// mirrors tells whether registry mirrors are configured in the old way.
func (c containerdConfig) mirrors() bool {
	return len(c.root.table("plugins", criImages, "registry", "mirrors")) > 0 ||
		len(c.root.table("plugins", criPlugin, "registry", "mirrors")) > 0
}

// cniDirs are the directories that containerd looks for CNI plugins in.
func (c containerdConfig) cniDirs() []string {
	cni := c.cri().table("cni")
	if dir := cni.text("bin_dir"); dir != "" { // wins over bin_dirs
		return []string{dir}
	}
	var dirs []string
	list, _ := cni["bin_dirs"].([]any)
	for _, d := range list {
		if s, ok := d.(string); ok && s != "" {
			dirs = append(dirs, s)
		}
	}
	if len(dirs) == 0 {
		return []string{"/opt/cni/bin"}
	}
	return dirs
}

// runtime is one of the OCI runtimes that pods may ask for.
type runtime struct {
	name  string
	table table
}

// runtimes are in the order in which containerd asks them: the default first,
// then by name.
func (c containerdConfig) runtimes() []runtime {
	containerd := c.cri().table("containerd")
	var out []runtime
	for name := range containerd.table("runtimes") {
		out = append(out, runtime{name, containerd.table("runtimes", name)})
	}
	first := containerd.text("default_runtime_name")
	slices.SortFunc(out, func(a, b runtime) int {
		switch {
		case a.name == first && b.name != first:
			return -1
		case b.name == first && a.name != first:
			return 1
		case a.name < b.name:
			return -1
		}
		return 1
	})
	return out
}

func (r runtime) binaryName() string  { return r.table.table("options").text("BinaryName") }
func (r runtime) runtimePath() string { return r.table.text("runtime_path") }

// runc tells whether the runtime's containers are made by runc's shim, and so
// whether its options say anything about cgroups.
func (r runtime) runc() bool {
	return r.table.text("runtime_type") == "io.containerd.runc.v2"
}

// program is the absolute path that a runtime gives for the program of this
// name, "" when none does. Another program in its place, such as crun or a
// vendor's wrapper, is not that program.
func (c containerdConfig) program(name string, of func(runtime) string) string {
	for _, r := range c.runtimes() {
		if p := of(r); path.IsAbs(p) && path.Base(p) == name {
			return p
		}
	}
	return ""
}

// The cgroup drivers as the kubelet spells them.
const (
	systemdDriver  = "systemd"
	cgroupfsDriver = "cgroupfs"
)

// cgroupDriver is what CRI tells the kubelet: the first runtime decides that
// has an opinion (getCgroupDriver in containerd's
// internal/cri/server/runtime_config_linux.go).
func (c containerdConfig) cgroupDriver() string {
	for _, r := range c.runtimes() {
		if !r.runc() {
			continue
		}
		if on, _ := r.table.table("options")["SystemdCgroup"].(bool); on {
			return systemdDriver
		}
		return cgroupfsDriver
	}
	return ""
}
