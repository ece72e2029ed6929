package hostexec_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

// tree makes a host's root: a path ending in "/" is a directory, a value with
// "-> " a link, anything else a file.
func tree(t *testing.T, files map[string]string) (hostexec.FS, string) {
	t.Helper()
	root := t.TempDir()
	for path, content := range files {
		real := filepath.Join(root, path)
		must(t, os.MkdirAll(filepath.Dir(real), 0o755))
		if target, ok := strings.CutPrefix(content, "-> "); ok {
			must(t, os.Symlink(target, real))
		} else if strings.HasSuffix(path, "/") {
			must(t, os.MkdirAll(real, 0o755))
		} else {
			must(t, os.WriteFile(real, []byte(content), 0o644))
		}
	}
	return hostexec.NewFS(root), root
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestLinksStayInsideTheRoot(t *testing.T) {
	fs, root := tree(t, map[string]string{
		"/opt/vendor/cni/bridge": "old",
		"/opt/cni/bin":           "-> /opt/vendor/cni", // absolute, as some distributions have it
		"/usr/bin/kubelet":       "-> ../lib/kubelet-1.35",
		"/usr/lib/kubelet-1.35":  "old kubelet",
		"/escape":                "-> ../../../../../../etc",
	})
	for path, want := range map[string]string{
		"/opt/cni/bin/bridge": "/opt/vendor/cni/bridge",
		"/usr/bin/kubelet":    "/usr/lib/kubelet-1.35",
		"/escape/passwd":      "/etc/passwd",
		"/not/there":          "/not/there",
	} {
		got, err := fs.Resolve(path)
		must(t, err)
		if got != root+want {
			t.Errorf("Resolve(%s) = %s, want %s below the root", path, got, want)
		}
		if back := fs.HostPath(got); back != want {
			t.Errorf("HostPath(%s) = %s, want %s", got, back, want)
		}
	}
	if _, err := fs.Resolve("relative"); err == nil {
		t.Error("a relative path was accepted")
	}
	_, err := fs.ReadFile("/not/there")
	if !errors.Is(err, os.ErrNotExist) || strings.Contains(err.Error(), root) {
		t.Errorf("error %v: want 'does not exist' with the host's path", err)
	}
}

func TestReplaceKeepsTheLinkAndReplacesItsTarget(t *testing.T) {
	fs, root := tree(t, map[string]string{"/usr/lib/kubelet-1.35": "old", "/usr/bin/kubelet": "-> /usr/lib/kubelet-1.35"})
	must(t, fs.WriteFile(t.Context(), "/usr/bin/kubelet", []byte("new"), 0o755))
	target, err := os.Readlink(root + "/usr/bin/kubelet")
	must(t, err)
	data, err := os.ReadFile(root + "/usr/lib/kubelet-1.35")
	must(t, err)
	if target != "/usr/lib/kubelet-1.35" || string(data) != "new" {
		t.Errorf("link to %s, target holds %q", target, data)
	}
}

func TestReplaceKeepsOwnerAndAttributes(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("changing owners needs root; CI runs this as root")
	}
	fs, root := tree(t, map[string]string{"/bin/kubectl": "old"})
	file := root + "/bin/kubectl"
	must(t, os.Chown(file, 1234, 4321))
	must(t, unix.Setxattr(file, "user.label", []byte("keep me"), 0))
	must(t, fs.WriteFile(t.Context(), "/bin/kubectl", []byte("new"), 0o755))
	info, err := os.Stat(file)
	must(t, err)
	st := info.Sys().(*syscall.Stat_t)
	value := make([]byte, 64)
	n, err := unix.Getxattr(file, "user.label", value)
	must(t, err)
	if st.Uid != 1234 || st.Gid != 4321 || info.Mode().Perm() != 0o755 || string(value[:n]) != "keep me" {
		t.Errorf("owner %d:%d mode %v label %q", st.Uid, st.Gid, info.Mode(), value[:n])
	}
}

// A program that runs is replaced without ETXTBSY, and goes on.
func TestReplaceARunningProgram(t *testing.T) {
	fs, root := tree(t, map[string]string{"/bin/": ""})
	sleep, err := os.ReadFile("/bin/sleep")
	must(t, err)
	must(t, os.WriteFile(root+"/bin/sleep", sleep, 0o755))
	p, err := os.StartProcess(root+"/bin/sleep", []string{"sleep", "60"}, &os.ProcAttr{})
	must(t, err)
	defer func() {
		_ = p.Kill()
		_, _ = p.Wait()
	}()
	before, err := fs.Digest(t.Context(), "/bin/sleep")
	must(t, err)
	must(t, fs.WriteFile(t.Context(), "/bin/sleep", []byte("new"), 0o755))
	running, err := hostexec.NewFS("/").ProcessDigest(t.Context(), p.Pid)
	must(t, err)
	if running != before {
		t.Errorf("the process runs %s, want the old file %s", running, before)
	}
	must(t, p.Signal(syscall.Signal(0)))
}

func TestReplaceRefusesWrongContentAndLeavesNothing(t *testing.T) {
	fs, root := tree(t, map[string]string{"/bin/kubelet": "old", "/bin/.kubelet.upgrader-tmp": "left by a crash"})
	err := fs.Replace(t.Context(), hostexec.Replacement{
		Path: "/bin/kubelet", Content: strings.NewReader("altered"), SHA256: strings.Repeat("0", 64), Mode: 0o755,
	})
	var digest *hostexec.DigestError
	if !errors.As(err, &digest) || digest.Path != "/bin/kubelet" {
		t.Fatalf("error %v, want a DigestError", err)
	}
	if diff := cmp.Diff(map[string]string{"kubelet": "old"}, contents(t, root+"/bin")); diff != "" {
		t.Error(diff)
	}
}

func TestReplaceRefusesWhatIsNoFile(t *testing.T) {
	fs, root := tree(t, map[string]string{"/bin/kubelet/keep": "x"})
	if err := fs.WriteFile(t.Context(), "/bin/kubelet", []byte("new"), 0o755); err == nil {
		t.Error("a directory was replaced")
	}
	if _, err := os.Stat(root + "/bin/kubelet/keep"); err != nil {
		t.Error(err)
	}
}

func TestRemoveTakesTheLinkNotItsTarget(t *testing.T) {
	fs, root := tree(t, map[string]string{"/a": "-> /b", "/b": "keep"})
	must(t, fs.Remove("/a"))
	must(t, fs.Remove("/a"))
	if diff := cmp.Diff(map[string]string{"b": "keep"}, contents(t, root)); diff != "" {
		t.Error(diff)
	}
}

func TestFreeOfAPathThatIsNotThereYet(t *testing.T) {
	fs, _ := tree(t, map[string]string{"/var/lib/": ""})
	space, err := fs.Free("/var/lib/upgrader/bundles")
	must(t, err)
	if space.Bytes == 0 || space.Inodes == 0 {
		t.Errorf("%+v", space)
	}
}

func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	files := map[string]string{}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		must(t, err)
		files[e.Name()] = string(data)
	}
	return files
}
