package steps

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/node-upgrader/node-upgrader/hostexec"
	"github.com/node-upgrader/node-upgrader/steps/cri"
)

func TestContainerdFilesArePlaced(t *testing.T) {
	upstream := map[string]string{
		"containerd": "/usr/local/bin/containerd", "containerd-shim-runc-v2": "/usr/local/bin/containerd-shim-runc-v2",
		"ctr": "/usr/local/bin/ctr", "runc": "/usr/local/sbin/runc",
	}
	but := func(changes map[string]string) map[string]string {
		out := map[string]string{}
		for name, place := range upstream {
			out[name] = place
		}
		for name, place := range changes {
			out[name] = place
		}
		return out
	}
	runc := `[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]` + "\n"
	for name, c := range map[string]struct {
		prepare func(*containerdNode)
		want    map[string]string
	}{
		"upstream": {func(*containerdNode) {}, upstream},
		"a distribution": {
			func(n *containerdNode) {
				n.must(os.RemoveAll(filepath.Join(n.root, "usr/local")))
				for _, f := range []string{"/usr/bin/containerd", "/usr/bin/containerd-shim-runc-v2", "/usr/sbin/runc"} {
					n.write(f, "containerd 1.7.35", 0o755)
				}
				n.execStart("/usr/bin/containerd")
			},
			map[string]string{
				"containerd": "/usr/bin/containerd", "containerd-shim-runc-v2": "/usr/bin/containerd-shim-runc-v2",
				"ctr": "/usr/bin/ctr", "runc": "/usr/sbin/runc",
			},
		},
		"an absolute link": {
			func(n *containerdNode) {
				n.write("/opt/containerd/bin/containerd", "containerd 1.7.35", 0o755)
				n.must(os.Symlink("/opt/containerd/bin/containerd", filepath.Join(n.root, "usr/bin-containerd")))
				n.must(os.Remove(filepath.Join(n.root, "usr/local/bin/containerd-shim-runc-v2")))
				n.execStart("/usr/bin-containerd")
			},
			but(map[string]string{
				"containerd": "/opt/containerd/bin/containerd", "containerd-shim-runc-v2": "/opt/containerd/bin/containerd-shim-runc-v2",
			}),
		},
		"runc by the runtime's BinaryName": {
			func(n *containerdNode) {
				n.dumps["1.7.35"] = strings.Replace(oldDump, runc, runc+"BinaryName = '/opt/runc/runc'\n", 1)
			},
			but(map[string]string{"runc": "/opt/runc/runc"}),
		},
		"another runtime in runc's place": {
			func(n *containerdNode) {
				n.dumps["1.7.35"] = strings.Replace(oldDump, runc, runc+"BinaryName = '/usr/bin/crun'\n", 1)
			},
			upstream,
		},
		"the running daemon's PATH": {
			func(n *containerdNode) {
				n.write("/opt/sbin/runc", "runc", 0o755)
				n.write("/proc/"+strconv.Itoa(n.unit().MainPID)+"/environ", "A=b\x00PATH=/nowhere:/opt/sbin:/usr/local/bin\x00", 0o400)
			},
			but(map[string]string{"runc": "/opt/sbin/runc"}),
		},
		"no runc": {
			func(n *containerdNode) { n.must(os.Remove(filepath.Join(n.root, "usr/local/sbin/runc"))) },
			upstream,
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newContainerdNode(t)
			c.prepare(n)
			d, err := findContainerd(t.Context(), n.env.Host)
			n.must(err)
			config, err := installedConfig(t.Context(), n.env.Host, d)
			n.must(err)
			files, err := placeContainerd(n.env, d, config)
			n.must(err)
			got := map[string]string{}
			for _, f := range files {
				got[f.Name()] = f.Dest
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func (n *containerdNode) execStart(argv ...string) {
	u := n.unit()
	u.ExecStart = [][]string{argv}
	n.units.Put(u)
}

func TestContainerdSocket(t *testing.T) {
	for name, c := range map[string]struct {
		argv []string
		dump string
		want string
	}{
		"default":          {nil, oldDump, cri.DefaultSocket},
		"a flag":           {[]string{"--address", "/run/a.sock"}, newDump, "/run/a.sock"},
		"a short flag":     {[]string{"-a=/run/a.sock"}, newDump, "/run/a.sock"},
		"up to version 3":  {nil, oldDump + "\n[grpc]\naddress = '/run/b.sock'\n", "/run/b.sock"},
		"since version 4":  {nil, strings.Replace(newDump, cri.DefaultSocket, "/run/c.sock", 1), "/run/c.sock"},
		"another log flag": {[]string{"--log-level", "-a"}, newDump, cri.DefaultSocket},
	} {
		t.Run(name, func(t *testing.T) {
			n := newContainerdNode(t)
			n.execStart(append([]string{"/usr/local/bin/containerd"}, c.argv...)...)
			n.dumps["1.7.35"] = c.dump
			if got, err := ContainerdSocket(t.Context(), n.env.Host); err != nil || got != c.want {
				t.Errorf("%q %v, want %q", got, err, c.want)
			}
		})
	}
}

// A containerd that cannot be asked leaves the file, with its imports.
func TestContainerdConfigFromFiles(t *testing.T) {
	n := newContainerdNode(t)
	n.dumps = nil
	n.execStart("/usr/local/bin/containerd", "-c", "/etc/c/config.toml")
	n.write("/etc/c/config.toml", `
version = 3
imports = ["conf.d/*.toml", "/etc/c/config.toml"]
[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ['/opt/a']
conf_dir = '/etc/x'
`, 0o644)
	n.write("/etc/c/conf.d/10.toml", "[plugins.'io.containerd.cri.v1.runtime'.cni]\nbin_dirs = ['/opt/b', '/opt/c']\n", 0o644)
	d, err := findContainerd(t.Context(), n.env.Host)
	n.must(err)
	config, err := installedConfig(t.Context(), n.env.Host, d)
	n.must(err)
	if diff := cmp.Diff([]string{"/opt/b", "/opt/c"}, config.cniDirs()); diff != "" {
		t.Error(diff)
	}
	if got := config.cri().table("cni").text("conf_dir"); got != "/etc/x" {
		t.Errorf("conf_dir %q", got)
	}
	if v, err := configFileVersion(n.env.Host.FS, d.config); v != 3 || err != nil {
		t.Errorf("version %d %v", v, err)
	}
	n.must(os.RemoveAll(filepath.Join(n.root, "etc/c")))
	config, err = installedConfig(t.Context(), n.env.Host, d)
	if diff := cmp.Diff([]string{"/opt/cni/bin"}, config.cniDirs()); err != nil || diff != "" {
		t.Error(err, diff)
	}
}

// Flags may be in variables, of the unit or of a file.
func TestContainerdFlagsInVariables(t *testing.T) {
	n := newContainerdNode(t)
	u := n.unit()
	u.ExecStart = [][]string{{"/usr/local/bin/containerd", "$OPTS", "--state=${STATE}"}}
	u.Environment = []string{"OPTS=--log-level=debug", "STATE=/run/c"}
	u.EnvFiles = []hostexec.EnvFile{{Path: "/etc/default/containerd", Optional: true}}
	n.units.Put(u)
	n.write("/etc/default/containerd", "OPTS='--config /etc/c.toml -a /run/c.sock'\n", 0o644)
	d, err := findContainerd(t.Context(), n.env.Host)
	n.must(err)
	if diff := cmp.Diff([]string{"/etc/c.toml", "/run/c.sock", "/run/c"}, []string{d.config, d.socket, d.state}); diff != "" {
		t.Error(diff)
	}
}

func TestCgroupDriver(t *testing.T) {
	gvisor := "[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.gvisor]\nruntime_type = 'io.containerd.runsc.v1'\n"
	for name, c := range map[string]struct{ dump, want string }{
		"systemd":                      {newDump, systemdDriver},
		"no key":                       {strings.Replace(newDump, "SystemdCgroup = true", "", 1), cgroupfsDriver},
		"a runtime without an opinion": {newDump + gvisor, systemdDriver},
		"no runc":                      {gvisor, ""},
	} {
		t.Run(name, func(t *testing.T) {
			n := newContainerdNode(t)
			n.dumps["1.7.35"] = c.dump
			config, err := dumpConfig(t.Context(), n.env.Host, "/usr/local/bin/containerd", "/etc/containerd/config.toml")
			n.must(err)
			if got := config.cgroupDriver(); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

func TestContainerdUnitIsMissing(t *testing.T) {
	n := newContainerdNode(t)
	u := n.unit()
	u.LoadState = "not-found"
	n.units.Put(u)
	if _, err := findContainerd(t.Context(), n.env.Host); !errors.Is(err, errNoUnit) {
		t.Error(err)
	}
	if state := n.checkCNI(); state.Phase != Blocked {
		t.Errorf("%+v", state)
	}
}
