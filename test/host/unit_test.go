package host

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

func TestMatchHierarchies(t *testing.T) {
	v1 := func(dir, options string) *mountinfo.Info {
		return &mountinfo.Info{FSType: "cgroup", Mountpoint: "/sys/fs/cgroup/" + dir, Root: "/", VFSOptions: "rw," + options}
	}
	for name, c := range map[string]struct {
		own    string
		mounts []*mountinfo.Info
		want   []hierarchy
		pure   bool
	}{
		"v2": {
			own:    "0::/user.slice/session-1.scope\n",
			mounts: []*mountinfo.Info{{FSType: "cgroup2", Mountpoint: "/sys/fs/cgroup", Root: "/"}},
			want:   []hierarchy{{Mount: "/sys/fs/cgroup", Unified: true, Own: "/sys/fs/cgroup/user.slice/session-1.scope"}},
			pure:   true,
		},
		"v1 and v2": {
			own: "9:name=systemd:/\n3:cpuset:/\n2:cpu,cpuacct:/a/b\n1:rdma:/\n0::/\n",
			mounts: []*mountinfo.Info{
				v1("cpu,cpuacct", "cpu,cpuacct"), v1("cpuset", "cpuset"), v1("systemd", "xattr,name=systemd"),
				{FSType: "cgroup2", Mountpoint: "/sys/fs/cgroup/unified", Root: "/"},
			},
			want: []hierarchy{
				{Mount: "/sys/fs/cgroup/systemd", Controllers: []string{"name=systemd"}, Own: "/sys/fs/cgroup/systemd"},
				{Mount: "/sys/fs/cgroup/cpuset", Controllers: []string{"cpuset"}, Own: "/sys/fs/cgroup/cpuset"},
				{Mount: "/sys/fs/cgroup/cpu,cpuacct", Controllers: []string{"cpu", "cpuacct"}, Own: "/sys/fs/cgroup/cpu,cpuacct/a/b"},
				{Mount: "/sys/fs/cgroup/unified", Unified: true, Own: "/sys/fs/cgroup/unified"},
			},
		},
		"a container that sees a part": {
			own:    "1:memory:/docker/abc/x\n",
			mounts: []*mountinfo.Info{{FSType: "cgroup", Mountpoint: "/sys/fs/cgroup/memory", Root: "/docker/abc", VFSOptions: "rw,memory"}},
			want:   []hierarchy{{Mount: "/sys/fs/cgroup/memory", Controllers: []string{"memory"}, Own: "/sys/fs/cgroup/memory/x"}},
		},
		"entered from outside": {
			own:    "0::/../..\n",
			mounts: []*mountinfo.Info{{FSType: "cgroup2", Mountpoint: "/sys/fs/cgroup", Root: "/"}},
			want:   []hierarchy{{Mount: "/sys/fs/cgroup", Unified: true, Own: "/sys/fs/cgroup"}},
			pure:   true,
		},
		"none": {own: "0::/\n"},
	} {
		t.Run(name, func(t *testing.T) {
			got := matchHierarchies([]byte(c.own), c.mounts)
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
			if pure(got) != c.pure {
				t.Errorf("pure: %v", !c.pure)
			}
		})
	}
}

func TestParseStat(t *testing.T) {
	line := "42 (a (b) c) Z 1 42 42 0 -1 4194560 1 0 0 0 1 2 3 4 20 0 1 0 987654 1 2 3"
	start, state, err := parseStat([]byte(line))
	if start != 987654 || state != 'Z' || err != nil {
		t.Errorf("start %d, state %c, error %v", start, state, err)
	}
	for _, bad := range []string{"", "42", "42 (x", "42 (x) S 1 2"} {
		if _, _, err := parseStat([]byte(bad)); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
}

func TestAProcessIsKnownByItsStartTime(t *testing.T) {
	self, err := lookup(os.Getpid())
	must(t, err)
	if !self.alive() {
		t.Error("this process is not alive")
	}
	other := process{PID: self.PID, Start: self.Start + 1}
	if other.alive() {
		t.Error("another process of this PID is alive")
	}
	must(t, other.kill()) // must not end the test
	if _, err := other.open(); !errors.Is(err, ErrNotRunning) {
		t.Errorf("open: %v", err)
	}
	must(t, process{}.kill())
}

func TestVerifyRoot(t *testing.T) {
	marked := func(text string) string {
		root := t.TempDir()
		must(t, os.Mkdir(filepath.Join(root, "etc"), 0o755), os.WriteFile(filepath.Join(root, marker), []byte(text), 0o644))
		return root
	}
	id := func(path string) fileID {
		var st unix.Stat_t
		must(t, unix.Stat(path, &st))
		return idOf(st)
	}
	good, bare, other := marked(markerText), t.TempDir(), marked("something else")
	for name, c := range map[string]struct {
		root          string
		machine, want fileID
		refused       bool
	}{
		"right":               {root: good, machine: id("/"), want: id(good)},
		"did not pivot":       {root: "/", machine: id("/"), want: id(good), refused: true},
		"mounted the machine": {root: good, machine: id(good), want: id(good), refused: true},
		"no marker":           {root: bare, machine: id("/"), want: id(bare), refused: true},
		"another marker":      {root: other, machine: id("/"), want: id(other), refused: true},
		"not there":           {root: bare + "/none", machine: id("/"), refused: true},
	} {
		if err := verifyRoot(c.root, c.machine, c.want); errors.Is(err, ErrRefused) != c.refused || (err != nil) != c.refused {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSpecIsValidated(t *testing.T) {
	for _, bad := range []Spec{
		{Name: "", IP: "10.89.0.2"},
		{Name: "UPPER", IP: "10.89.0.2"},
		{Name: "-a", IP: "10.89.0.2"},
		{Name: "much-too-long", IP: "10.89.0.2"},
		{Name: "a/b", IP: "10.89.0.2"},
		{Name: "a", IP: ""},
		{Name: "a", IP: Gateway},
		{Name: "a", IP: "10.90.0.2"},
		{Name: "a", IP: "::1"},
		{Name: "a", IP: "10.89.0.2", From: "x", Layers: []string{"y"}},
	} {
		if bad.validate() == nil {
			t.Errorf("%+v is taken", bad)
		}
	}
	must(t, Spec{Name: "node-1", IP: "10.89.0.2"}.validate())
}

func TestKernelSettingsComeBack(t *testing.T) {
	sys, file := t.TempDir(), filepath.Join(t.TempDir(), "kernel.json")
	set := func(value string) {
		must(t, os.MkdirAll(sys+"/kernel", 0o755), os.WriteFile(sys+"/kernel/panic", []byte(value), 0o644))
	}
	get := func() string {
		data, err := os.ReadFile(sys + "/kernel/panic")
		must(t, err)
		return string(data)
	}
	set("1\n")
	must(t, saveKernel(sys, file))
	set("10\n")
	must(t, saveKernel(sys, file)) // a second ground must not save the changed value
	must(t, restoreKernel(sys, file))
	if get() != "1\n" {
		t.Errorf("restored to %q", get())
	}
	must(t, restoreKernel(sys, file)) // nothing saved: nothing to do

	set("5\n")
	must(t, saveKernel(sys, file))
	data, err := os.ReadFile(file)
	must(t, err, os.WriteFile(file, []byte(strings.Replace(string(data), bootID(), "another boot", 1)), 0o644))
	set("7\n")
	must(t, restoreKernel(sys, file))
	if get() != "7\n" {
		t.Errorf("settings of another boot were restored: %q", get())
	}
}

func TestSweepTakesOnlyWhatIsDead(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	self, err := lookup(os.Getpid())
	must(t, err)
	stranger := process{PID: self.PID, Start: self.Start + 1} // its PID was taken by this test
	add := func(name string, r record) {
		dir := filepath.Join(runDir(), name)
		must(t, os.MkdirAll(dir, 0o755), writeJSON(recordFile(dir), r))
	}
	hosts := map[string]*hostRecord{"n": {Name: "n", Init: stranger, Keeper: stranger}}
	add("dead", record{BootID: bootID(), LAN: stranger, Hosts: hosts})
	add("lasting", record{BootID: bootID(), Persist: true, LAN: self, Hosts: hosts})
	add("old", record{BootID: "another boot", Persist: true, LAN: self})
	add("alive", record{BootID: bootID(), LAN: self})
	must(t, os.Mkdir(filepath.Join(runDir(), "unborn"), 0o755))
	owner, err := os.Create(ownerFile(filepath.Join(runDir(), "alive")))
	must(t, err)
	defer owner.Close()
	must(t, unix.Flock(int(owner.Fd()), unix.LOCK_EX))

	must(t, Sweep())

	for name, want := range map[string]bool{"dead": false, "old": false, "unborn": false, "alive": true, "lasting": true} {
		if _, err := os.Stat(filepath.Join(runDir(), name)); (err == nil) != want {
			t.Errorf("%s is there: %v", name, !want)
		}
	}
	if got, err := Grounds(); err != nil || len(got) != 1 || got[0] != "lasting" {
		t.Errorf("grounds %v, %v", got, err)
	}
}

func TestFilesAreReachedInsideTheRoot(t *testing.T) {
	dir := t.TempDir()
	f, err := os.Open(dir)
	must(t, err)
	defer f.Close()
	r := rootFS{f}
	must(t, r.writeFile("/etc/deep/file", strings.NewReader("one"), 0o640))
	must(t, os.Symlink("/etc/deep", filepath.Join(dir, "link"))) // absolute: inside the root
	must(t, r.writeFile("/link/file", strings.NewReader("two"), 0o755))
	must(t, r.writeFile("../../climbs", strings.NewReader("three"), 0o644))
	for name, want := range map[string]string{"etc/deep/file": "two", "climbs": "three"} {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	if info, err := os.Stat(filepath.Join(dir, "etc/deep/file")); err != nil || info.Mode() != 0o755 {
		t.Errorf("%v, %v", info, err)
	}
	src := t.TempDir()
	must(t, os.WriteFile(src+"/tool", []byte("x"), 0o755), os.Symlink("tool", src+"/alias"))
	must(t, r.copyIn(src, "/opt/tools"))
	must(t, r.copyIn(src+"/tool", "/opt/one"))
	if target, err := os.Readlink(dir + "/opt/tools/alias"); err != nil || target != "tool" {
		t.Errorf("%q, %v", target, err)
	}
	if data, err := r.readFile("/opt/one"); err != nil || string(data) != "x" {
		t.Errorf("%q, %v", data, err)
	}
}

func TestPrepareIsWhatABootNeeds(t *testing.T) {
	root := t.TempDir()
	must(t, os.MkdirAll(root+"/etc/systemd/system", 0o755), os.MkdirAll(root+"/var/log", 0o755))
	must(t, os.WriteFile(root+"/etc/machine-id", []byte("x"), 0o644))
	must(t, prepare(root), prepare(root))
	if text, err := os.ReadFile(root + marker); err != nil || string(text) != markerText {
		t.Errorf("marker %q, %v", text, err)
	}
	if target, err := os.Readlink(root + "/etc/systemd/system/systemd-sysctl.service"); err != nil || target != "/dev/null" {
		t.Errorf("systemd-sysctl is %q, %v", target, err)
	}
	if _, err := os.Lstat(root + "/etc/machine-id"); !os.IsNotExist(err) {
		t.Errorf("machine-id: %v", err)
	}
}
