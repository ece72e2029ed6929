package steps

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// readOnly mounts a directory of the node over itself, read-only.
func readOnly(dir string) func(*testing.T, string) {
	return func(t *testing.T, root string) {
		t.Helper()
		dir := filepath.Join(root, dir)
		mount(t, dir, dir, "", unix.MS_BIND, "")
		mount(t, "", dir, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, "")
	}
}

// mount mounts for the time of the test.
func mount(t *testing.T, source, target, fstype string, flags uintptr, data string) {
	t.Helper()
	err := unix.Mount(source, target, fstype, flags, data)
	if errors.Is(err, unix.EPERM) {
		t.Skip("root may not mount here; CI's may")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(target, unix.MNT_DETACH) })
}

// chattr sets a flag of a file for the time of the test.
func chattr(flag, path string) func(*testing.T, string) {
	return func(t *testing.T, root string) {
		t.Helper()
		path := filepath.Join(root, path)
		if _, err := os.Stat(path); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command("chattr", "+"+flag, path).CombinedOutput(); err != nil {
			t.Skipf("root may not set flags of files here; CI's may: %s", out)
		}
		t.Cleanup(func() {
			if out, err := exec.Command("chattr", "-"+flag, path).CombinedOutput(); err != nil {
				t.Errorf("chattr: %v: %s", err, out)
			}
		})
	}
}

// small is a file system with this many inodes in place of a directory.
func small(dir, inodes string) func(*testing.T, string) {
	return func(t *testing.T, root string) {
		t.Helper()
		dir := filepath.Join(root, dir)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		old := map[string][]byte{}
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if e.IsDir() { // of ours, and empty
				continue
			}
			if old[e.Name()], err = os.ReadFile(filepath.Join(dir, e.Name())); err != nil {
				t.Fatal(err)
			}
		}
		mount(t, "tmpfs", dir, "tmpfs", 0, "nr_inodes="+inodes)
		for name, data := range old {
			if err := os.WriteFile(filepath.Join(dir, name), data, 0o755); err != nil { //nolint:gosec // programs
				t.Fatal(err)
			}
		}
	}
}

// aNodeOf makes a node before a step, and says its root.
type aNodeOf func(*testing.T) (Step, Env)

func beforeContainerd(t *testing.T) (Step, Env) {
	n := newContainerdNode(t)
	return containerdStep(), n.env
}

func beforeCNIPlugins(t *testing.T) (Step, Env) {
	n := newContainerdNode(t)
	if err := os.MkdirAll(n.root+"/opt/cni", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/opt/vendor", n.root+"/opt/cni/bin"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"bridge", "portmap"} {
		n.write("/opt/vendor/"+name, "CNI "+name+" plugin v1.1.1", 0o755)
		n.commands.Say("/opt/cni/bin/"+name, "CNI "+name+" plugin v1.1.1")
	}
	return cniPluginsStep(), n.env
}

func beforeKubeadm(t *testing.T) (Step, Env) {
	n := newKubeadmNode(t)
	return kubeadmStep(), n.env
}

func beforeKubelet(t *testing.T) (Step, Env) {
	n := newKubeletNode(t)
	if err := os.MkdirAll(n.root+"/opt/kubelets", 0o755); err != nil {
		t.Fatal(err)
	}
	// The unit's program is a link.
	if err := errors.Join(
		os.Rename(n.root+"/usr/bin/kubelet", n.root+"/opt/kubelets/kubelet-1.35"),
		os.Symlink("/opt/kubelets/kubelet-1.35", n.root+"/usr/bin/kubelet"),
	); err != nil {
		t.Fatal(err)
	}
	return n.step, n.env
}

func beforeCopy(t *testing.T) (Step, Env) {
	n := newKubeletNode(t)
	n.write(kubeletConfig, "evictionHard: {nodefs.available: 1Mi}\n") // how full this machine is does not matter
	n.env.Bundle.Digest = "sha256:" + strings.Repeat("0", 64)
	if err := os.MkdirAll(n.root+Store, 0o700); err != nil {
		t.Fatal(err)
	}
	return copyStep(), n.env
}

// What cannot be written is named before anything has changed, with what to do.
func TestWhatCannotBeWritten(t *testing.T) {
	for _, tc := range []struct {
		name         string
		node         aNodeOf
		spoil        func(*testing.T, string)
		reason, hint string
	}{
		{"copy: read-only", beforeCopy, readOnly(StateDir), "/var/lib/upgrader is mounted read-only", "mount -o remount,rw /var/lib/upgrader"},
		{"copy: immutable", beforeCopy, chattr("i", Store), Store + " is immutable", "chattr -i " + Store},
		{"copy: no inodes", beforeCopy, small(StateDir, "20"), "disk: /var/lib/upgrader has 19 inodes free, 512 are needed", "/var/lib/upgrader"},
		{
			"containerd: read-only", beforeContainerd, readOnly("/usr"),
			"/usr is mounted read-only: no writing to /usr/local/bin/containerd, /usr/local/bin/containerd-shim-runc-v2, /usr/local/bin/ctr, /usr/local/sbin/runc", "mount -o remount,rw /usr",
		},
		{"containerd: immutable", beforeContainerd, chattr("i", "/usr/local/sbin/runc"), "/usr/local/sbin/runc is immutable", "chattr -i /usr/local/sbin/runc"},
		{"containerd: append-only directory", beforeContainerd, chattr("a", "/usr/local/bin"), "/usr/local/bin is append-only: no writing to /usr/local/bin/containerd,", "chattr -a /usr/local/bin"},
		{"containerd: no inodes", beforeContainerd, small("/usr/local/bin", "8"), "disk: /usr/local/bin has 4 inodes free, installing containerd, containerd-shim-runc-v2, ctr needs 10", "df -i /usr/local/bin"},
		{"cni-plugins: read-only behind a link", beforeCNIPlugins, readOnly("/opt/vendor"), "/opt/vendor is mounted read-only: no writing to /opt/cni/bin/bridge, /opt/cni/bin/portmap", "mount -o remount,rw /opt/vendor"},
		{"cni-plugins: immutable behind a link", beforeCNIPlugins, chattr("i", "/opt/vendor/portmap"), "/opt/vendor/portmap is immutable: no writing to /opt/cni/bin/portmap", "chattr -i /opt/vendor/portmap"},
		{"kubeadm: read-only", beforeKubeadm, readOnly("/usr"), "/usr is mounted read-only: no writing to /usr/bin/kubeadm", "mount -o remount,rw /usr"},
		{"kubeadm: a manifest", beforeKubeadm, chattr("i", manifestPath(kubeAPIServer)), manifestPath(kubeAPIServer) + " is immutable", "chattr -i " + manifestPath(kubeAPIServer)},
		{"kubeadm: the manifests", beforeKubeadm, chattr("i", manifestsDir), manifestsDir + " is immutable: no writing to " + manifestsDir + "/etcd.yaml, ", "chattr -i " + manifestsDir},
		{"kubeadm: the kubelet's configuration", beforeKubeadm, readOnly("/var/lib/kubelet"), "/var/lib/kubelet is mounted read-only: no writing to /var/lib/kubelet/config.yaml,", "mount -o remount,rw /var/lib/kubelet"},
		{"kubeadm: a certificate", beforeKubeadm, chattr("i", apiServerCert), apiServerCert + " is immutable", "chattr -i " + apiServerCert},
		{"kubelet: immutable behind a link", beforeKubelet, chattr("i", "/opt/kubelets/kubelet-1.35"), "/opt/kubelets/kubelet-1.35 is immutable: no writing to /usr/bin/kubelet", "chattr -i /opt/kubelets/kubelet-1.35"},
		{"kubelet: kubectl", beforeKubelet, chattr("i", "/usr/local/bin/kubectl"), "/usr/local/bin/kubectl is immutable", "chattr -i /usr/local/bin/kubectl"},
		{"kubelet: our own directory is read-only", beforeKubelet, func(t *testing.T, root string) {
			if err := os.MkdirAll(root+StateDir, 0o700); err != nil {
				t.Fatal(err)
			}
			readOnly(StateDir)(t, root)
		}, "/var/lib/upgrader is mounted read-only: no writing to /var/lib/upgrader/bundles,", "mount -o remount,rw /var/lib/upgrader"},
		{"kubelet: our own directory has no inodes", beforeKubelet, small(StateDir, "20"), "disk: /var/lib/upgrader has 19 inodes free, the upgrade needs 66", "df -i /var/lib/upgrader"},
		{"kubelet: systemd's units", beforeKubelet, func(t *testing.T, root string) {
			if err := os.MkdirAll(root+systemUnits, 0o755); err != nil {
				t.Fatal(err)
			}
			chattr("i", systemUnits)(t, root)
		}, systemUnits + " is immutable", "chattr -i " + systemUnits},
	} {
		t.Run(tc.name, func(t *testing.T) {
			step, env := tc.node(t)
			if state, err := step.Check(t.Context(), env); err != nil || state.Phase != Needed {
				t.Fatalf("before: %+v, %v", state, err)
			}
			tc.spoil(t, env.Host.FS.Root())
			state, err := step.Check(t.Context(), env)
			if err != nil || state.Phase != Blocked {
				t.Fatalf("%+v, %v", state, err)
			}
			if !slices.ContainsFunc(state.Blocks, func(b Block) bool {
				return strings.HasPrefix(b.Reason, tc.reason) && strings.Contains(b.Hint, tc.hint)
			}) {
				t.Errorf("no block with %q and %q in:\n%+v", tc.reason, tc.hint, state.Blocks)
			}
		})
	}
}

// What is there twice is said once; what will not be written does not matter.
func TestWritableSaysEachThingOnce(t *testing.T) {
	n := newKubeadmNode(t)
	no := false
	n.env.Options.Kubeadm.CertificateRenewal = &no
	chattr("i", apiServerCert)(t, n.fs.Root())
	chattr("i", manifestsDir)(t, n.fs.Root())
	state, err := checkKubeadm(t.Context(), n.env)
	if err != nil || len(state.Blocks) != 1 {
		t.Errorf("%+v, %v", state.Blocks, err)
	}
}

func TestLockOnAReadOnlyDirectory(t *testing.T) {
	env := lockedEnv(t)
	if err := env.Host.FS.MkdirAll(StateDir, 0o700); err != nil {
		t.Fatal(err)
	}
	readOnly(StateDir)(t, env.Host.FS.Root())
	_, err := Lock(t.Context(), env)
	if ExitCode(err) != ExitBlocked || !strings.Contains(err.Error(), "/var/lib/upgrader is mounted read-only") {
		t.Errorf("exit %d: %v", ExitCode(err), err)
	}
}
