package hostexec_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/node-upgrader/node-upgrader/hostexec"
	"github.com/node-upgrader/node-upgrader/hostexec/hostexectest"
)

// witness writes down what it is told, and refuses the effect of one kind.
type witness struct {
	told   []string
	refuse string
}

var errRefused = errors.New("refused")

func (w *witness) Before(e hostexec.Effect) error {
	if e.Op == w.refuse {
		return errRefused
	}
	w.told = append(w.told, e.String())
	return nil
}

func (w *witness) After(e hostexec.Effect, err error) {
	if err != nil {
		w.told = append(w.told, "failed "+e.String())
		return
	}
	w.told = append(w.told, "done "+e.String())
}

// Each change is told before and after, reading and what is there already are
// not; one that is refused is not made.
func TestEveryChangeOfFilesIsWatched(t *testing.T) {
	node := map[string]string{
		"/usr/lib/kubelet-1.35": "old",
		"/usr/bin/kubelet":      "-> /usr/lib/kubelet-1.35",
		"/kept/":                "",
		"/log":                  "1\n",
	}
	temp := map[string]string{"/usr/bin/.kubectl.upgrader-tmp": "left by a crash"}
	kubectl := hostexec.Replacement{Path: "/usr/bin/kubectl", Content: strings.NewReader(""), Mode: 0o755}
	for _, tc := range []struct {
		name  string
		there map[string]string
		do    func(*testing.T, hostexec.FS) error
		want  []string
	}{
		{"mkdir", nil, func(_ *testing.T, fs hostexec.FS) error { return fs.MkdirAll("/a/b", 0o700) }, []string{"mkdir /a/b"}},
		{"mkdir of what is there", nil, func(_ *testing.T, fs hostexec.FS) error { return fs.MkdirAll("/kept", 0o700) }, nil},
		{
			"replace through a link", nil,
			func(t *testing.T, fs hostexec.FS) error {
				return fs.WriteFile(t.Context(), "/usr/bin/kubelet", []byte("new"), 0o755)
			},
			[]string{"write /usr/lib/.kubelet-1.35.upgrader-tmp", "rename /usr/lib/kubelet-1.35"},
		},
		{
			"prepare and discard", temp,
			func(t *testing.T, fs hostexec.FS) error {
				p, err := fs.Prepare(t.Context(), kubectl)
				if err == nil {
					p.Discard()
				}
				return err
			},
			[]string{"remove /usr/bin/.kubectl.upgrader-tmp", "write /usr/bin/.kubectl.upgrader-tmp", "remove /usr/bin/.kubectl.upgrader-tmp"},
		},
		{"link", nil, func(_ *testing.T, fs hostexec.FS) error { return fs.Link("/log", "/kept/log") }, []string{"link /kept/log"}},
		{"link to itself", nil, func(_ *testing.T, fs hostexec.FS) error { return fs.Link("/usr/bin/kubelet", "/usr/lib/kubelet-1.35") }, nil},
		{"symlink", nil, func(_ *testing.T, fs hostexec.FS) error { return fs.Symlink("/log", "/usr/bin/kubelet") }, []string{"symlink /usr/bin/kubelet"}},
		{"symlink that is there", nil, func(_ *testing.T, fs hostexec.FS) error {
			return fs.Symlink("/usr/lib/kubelet-1.35", "/usr/bin/kubelet")
		}, nil},
		{"remove", nil, func(_ *testing.T, fs hostexec.FS) error { return fs.Remove("/usr/bin/kubelet") }, []string{"remove /usr/bin/kubelet"}},
		{"remove what a crash left", temp, func(_ *testing.T, fs hostexec.FS) error { return fs.Remove("/usr/bin/kubectl") }, []string{"remove /usr/bin/.kubectl.upgrader-tmp"}},
		{"remove nothing", nil, func(_ *testing.T, fs hostexec.FS) error { return fs.Remove("/not/there") }, nil},
		{"remove a tree", nil, func(_ *testing.T, fs hostexec.FS) error { return fs.RemoveAll("/usr") }, []string{"remove-all /usr"}},
		{"remove no tree", nil, func(_ *testing.T, fs hostexec.FS) error { return fs.RemoveAll("/log/not") }, nil},
		{"append", nil, func(_ *testing.T, fs hostexec.FS) error { return fs.AppendLine("/log", []byte("2")) }, []string{"append /log"}},
		{"control", nil, func(_ *testing.T, fs hostexec.FS) error { return fs.WriteControl("/log", "2") }, []string{"control /log"}},
		{"unwatched", nil, func(_ *testing.T, fs hostexec.FS) error { return fs.Unwatched().Remove("/log") }, nil},
		{
			"read", nil,
			func(t *testing.T, fs hostexec.FS) error {
				_, err := fs.Digest(t.Context(), "/usr/bin/kubelet")
				_, err2 := fs.ReadDir("/usr")
				return errors.Join(err, err2, fs.SyncFS("/usr"))
			}, nil,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			host := func(w hostexec.Watch) (hostexec.FS, string) {
				fs, root := tree(t, node)
				for path, content := range tc.there {
					must(t, os.WriteFile(filepath.Join(root, path), []byte(content), 0o644))
				}
				return fs.Watched(w), root
			}
			w := &witness{}
			fs, _ := host(w)
			must(t, tc.do(t, fs))
			var want []string
			for _, e := range tc.want {
				want = append(want, e, "done "+e)
			}
			if diff := cmp.Diff(want, w.told); diff != "" {
				t.Errorf("told (-want +got):\n%s", diff)
			}
			if len(tc.want) == 0 {
				return
			}
			op, _, _ := strings.Cut(tc.want[0], " ")
			fs, root := host(&witness{refuse: op})
			before := snapshot(t, root)
			if err := tc.do(t, fs); !errors.Is(err, errRefused) {
				t.Errorf("refused: %v", err)
			}
			if diff := cmp.Diff(before, snapshot(t, root)); diff != "" {
				t.Errorf("refused and changed all the same:\n%s", diff)
			}
		})
	}
}

func TestAFailedChangeIsTold(t *testing.T) {
	fs, _ := tree(t, map[string]string{"/bin/kubelet/keep": "x"})
	w := &witness{}
	if err := fs.Watched(w).WriteFile(t.Context(), "/bin/kubelet", nil, 0o755); err == nil {
		t.Fatal("a directory was replaced")
	}
	if diff := cmp.Diff([]string{"write /bin/.kubelet.upgrader-tmp", "failed write /bin/.kubelet.upgrader-tmp"}, w.told); diff != "" {
		t.Error(diff)
	}
}

func TestUnitsAndCommandsAreWatched(t *testing.T) {
	units := hostexectest.NewUnits(hostexec.Unit{Name: "kubelet.service", ActiveState: "active"})
	units.OnTransient("upgrader.service", func(hostexec.Transient) {})
	units.OnTimer("x.timer", nil)
	units.OnKill("kubelet.service", func(int) error { return nil })
	commands := &hostexectest.Commands{}
	commands.Say("kubeadm", "")
	host := hostexec.Host{FS: hostexec.NewFS(t.TempDir()), Units: units, Commands: commands}
	work := func(ctx context.Context, h hostexec.Host) error {
		_, err := h.Units.Show(ctx, "kubelet.service")
		_, err2 := h.Commands.Run(ctx, hostexec.Command{Argv: []string{"kubeadm", "version"}})
		_, err3 := h.Commands.Run(ctx, hostexec.Command{Argv: []string{"kubeadm", "upgrade", "node"}, Changes: true})
		return errors.Join(err, err2, err3, h.Units.Stop(ctx, "kubelet.service"), h.Units.Reload(ctx),
			h.Units.ResetFailed(ctx, "kubelet.service"), h.Units.Start(ctx, "kubelet.service"),
			h.Units.StartTransient(ctx, hostexec.Transient{Name: "upgrader.service"}),
			h.Units.StartTransientTimer(ctx, hostexec.Timer{Name: "x.timer", After: 1, Service: hostexec.Transient{Argv: []string{"/x"}}}),
			h.Units.StopTransient(ctx, "x.timer"), h.Units.Kill(ctx, "kubelet.service", 9))
	}
	other, w := &witness{}, &witness{}
	must(t, work(t.Context(), host.Watched(other).Watched(w)))
	var want []string
	for _, e := range []string{
		"run kubeadm upgrade node", "stop kubelet.service", "daemon-reload", "reset-failed kubelet.service", "start kubelet.service",
		"start-transient upgrader.service", "start-timer x.timer", "stop-transient x.timer", "kill kubelet.service",
	} {
		want = append(want, e, "done "+e)
	}
	if diff := cmp.Diff(want, w.told); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
	if len(other.told) != 0 {
		t.Errorf("who is told no more was told %v", other.told)
	}
	for _, op := range []string{hostexec.OpRun, hostexec.OpStop, hostexec.OpStart} {
		if err := work(t.Context(), host.Watched(&witness{refuse: op})); !errors.Is(err, errRefused) {
			t.Errorf("%s refused: %v", op, err)
		}
	}
	if starts, stops := units.Count("kubelet.service"); starts != 3 || stops != 3 {
		t.Errorf("%d starts and %d stops, want 3 each: one of four was refused", starts, stops)
	}
	if n := len(slices.DeleteFunc(commands.Ran, func(l string) bool { return l != "kubeadm upgrade node" })); n != 3 {
		t.Errorf("%d upgrades, want 3: one of four was refused", n)
	}
	quiet := host.Watched(w).Watched(nil)
	w.told = nil
	must(t, quiet.Units.Stop(t.Context(), "kubelet.service"))
	if quiet.Units != host.Units || len(w.told) != 0 {
		t.Errorf("nobody is to be told, but %v was", w.told)
	}
}

func TestTempOf(t *testing.T) {
	for path, want := range map[string]string{
		"/usr/bin/.kubelet.upgrader-tmp": "/usr/bin/kubelet",
		"/usr/bin/kubelet":               "",
		"/usr/bin/.upgrader-tmp":         "",
		"/usr/bin/kubelet.upgrader-tmp":  "",
	} {
		if got, ok := hostexec.TempOf(path); got != want || ok != (want != "") {
			t.Errorf("TempOf(%s) = %s, %v", path, got, ok)
		}
	}
}

// snapshot is every path of a tree with its content.
func snapshot(t *testing.T, root string) map[string]string {
	t.Helper()
	files := map[string]string{}
	must(t, filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		switch {
		case d.IsDir():
			files[path] = "/"
		case d.Type()&os.ModeSymlink != 0:
			files[path], err = os.Readlink(path)
			files[path] = "-> " + files[path]
		default:
			var data []byte
			data, err = os.ReadFile(path)
			files[path] = string(data)
		}
		return err
	}))
	return files
}
