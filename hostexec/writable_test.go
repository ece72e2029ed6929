package hostexec_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

// mount mounts for the time of the test.
func mount(t *testing.T, source, target, fstype string, flags uintptr) {
	t.Helper()
	err := unix.Mount(source, target, fstype, flags, "")
	if errors.Is(err, unix.EPERM) {
		t.Skip("root may not mount here; CI's may")
	}
	must(t, err)
	t.Cleanup(func() { _ = unix.Unmount(target, unix.MNT_DETACH) })
}

// chattr sets a flag for the time of the test.
func chattr(t *testing.T, flag, path string) {
	t.Helper()
	if out, err := exec.Command("chattr", "+"+flag, path).CombinedOutput(); err != nil {
		t.Skipf("root may not set flags of files here; CI's may: %s", out)
	}
	t.Cleanup(func() { must(t, exec.Command("chattr", "-"+flag, path).Run()) })
}

func TestReplaceable(t *testing.T) {
	node := map[string]string{
		"/usr/bin/kubelet":    "-> /usr/lib/k/kubelet-1.35",
		"/usr/lib/k/":         "",
		"/usr/bin/kubectl":    "program",
		"/opt/cni/bin":        "-> /opt/vendor",
		"/opt/vendor/bridge":  "program",
		"/var/dangling":       "-> /usr/lib/k/nothing/there",
		"/usr/bin/kubeadm/x":  "",
		"/usr/lib/k/real.txt": "x",
	}
	obstacle := func(path, at string, what hostexec.Obstacle) *hostexec.ObstacleError {
		return &hostexec.ObstacleError{Path: path, At: at, What: what}
	}
	for _, tc := range []struct {
		name  string
		spoil func(t *testing.T, root string)
		path  string
		want  *hostexec.ObstacleError
		text  string
	}{
		{"a file", nil, "/usr/bin/kubectl", nil, ""},
		{"a file that is not there", nil, "/usr/bin/crictl", nil, ""},
		{"a directory that is not there", nil, "/opt/new/bin/x", nil, ""},
		{"through links", nil, "/opt/cni/bin/bridge", nil, ""},
		{"a link to nothing", nil, "/var/dangling", nil, ""},
		{"a directory in its place", nil, "/usr/bin/kubeadm", obstacle("/usr/bin/kubeadm", "/usr/bin/kubeadm", hostexec.NotAFile), "/usr/bin/kubeadm is not a regular file"},
		{"a pipe in its place", func(t *testing.T, root string) { must(t, unix.Mkfifo(root+"/usr/bin/runc", 0o600)) }, "/usr/bin/runc", obstacle("/usr/bin/runc", "/usr/bin/runc", hostexec.NotAFile), ""},
		{"a file as directory", nil, "/usr/bin/kubectl/x", obstacle("/usr/bin/kubectl/x", "/usr/bin/kubectl", hostexec.NotADir), ""},
		{
			"an immutable file behind a link", func(t *testing.T, root string) {
				must(t, os.WriteFile(root+"/usr/lib/k/kubelet-1.35", nil, 0o755))
				chattr(t, "i", root+"/usr/lib/k/kubelet-1.35")
			},
			"/usr/bin/kubelet", obstacle("/usr/bin/kubelet", "/usr/lib/k/kubelet-1.35", hostexec.Immutable),
			"/usr/bin/kubelet cannot be written: /usr/lib/k/kubelet-1.35 is immutable",
		},
		{"an append-only file", func(t *testing.T, root string) { chattr(t, "a", root+"/usr/bin/kubectl") }, "/usr/bin/kubectl", obstacle("/usr/bin/kubectl", "/usr/bin/kubectl", hostexec.AppendOnly), ""},
		{"an immutable directory", func(t *testing.T, root string) { chattr(t, "i", root+"/opt/vendor") }, "/opt/cni/bin/bridge", obstacle("/opt/cni/bin/bridge", "/opt/vendor", hostexec.Immutable), ""},
		{"an append-only directory", func(t *testing.T, root string) { chattr(t, "a", root+"/opt/vendor") }, "/opt/cni/bin/new", obstacle("/opt/cni/bin/new", "/opt/vendor", hostexec.AppendOnly), ""},
		{"an immutable directory farther up", func(t *testing.T, root string) { chattr(t, "i", root+"/opt") }, "/opt/new/bin/x", obstacle("/opt/new/bin/x", "/opt", hostexec.Immutable), ""},
		{
			"a read-only mount", func(t *testing.T, root string) {
				mount(t, root+"/usr", root+"/usr", "", unix.MS_BIND)
				mount(t, "", root+"/usr", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY)
			},
			"/usr/bin/kubelet", obstacle("/usr/bin/kubelet", "/usr", hostexec.ReadOnly), "/usr/bin/kubelet cannot be written: /usr is mounted read-only",
		},
		{
			"a read-only file system", func(t *testing.T, root string) {
				mount(t, "tmpfs", root+"/usr/lib/k", "tmpfs", unix.MS_RDONLY)
			},
			"/var/dangling", obstacle("/var/dangling", "/usr/lib/k", hostexec.ReadOnly), "",
		},
		{
			"a mounted file", func(t *testing.T, root string) {
				mount(t, root+"/usr/lib/k/real.txt", root+"/usr/bin/kubectl", "", unix.MS_BIND)
			},
			"/usr/bin/kubectl", obstacle("/usr/bin/kubectl", "/usr/bin/kubectl", hostexec.MountPoint), "/usr/bin/kubectl is a mount point of its own",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			fs, root := tree(t, node)
			if tc.spoil != nil {
				tc.spoil(t, root)
			}
			err := fs.Replaceable(tc.path)
			var got *hostexec.ObstacleError
			if err != nil && !errors.As(err, &got) {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if tc.text != "" && err.Error() != tc.text {
				t.Errorf("says: %v", err)
			}
			// It is told as it is: the kernel has the same opinion.
			err = fs.WriteFile(t.Context(), tc.path, []byte("new"), 0o755)
			if tc.name == "a directory that is not there" || tc.name == "a link to nothing" {
				dir, targetErr := fs.Target(tc.path)
				err = errors.Join(targetErr, fs.MkdirAll(filepath.Dir(dir), 0o755))
			}
			if (err == nil) != (tc.want == nil) {
				t.Errorf("and writing it: %v", err)
			}
		})
	}
}

func TestDirWritable(t *testing.T) {
	fs, root := tree(t, map[string]string{"/etc/kubernetes/": "", "/etc/cni": "a file"})
	for path, want := range map[string]bool{"/etc/kubernetes": true, "/etc/kubernetes/tmp": true, "/etc/cni": false} {
		if err := fs.DirWritable(path); (err == nil) != want {
			t.Errorf("%s: %v", path, err)
		}
	}
	chattr(t, "i", root+"/etc/kubernetes")
	for _, path := range []string{"/etc/kubernetes", "/etc/kubernetes/tmp"} {
		var got *hostexec.ObstacleError
		if err := fs.DirWritable(path); !errors.As(err, &got) || got.At != "/etc/kubernetes" || got.What != hostexec.Immutable {
			t.Errorf("%s: %v", path, err)
		}
	}
}
