package skeleton

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/node-upgrader/node-upgrader/hostexec"
	"github.com/node-upgrader/node-upgrader/image"
	"github.com/node-upgrader/node-upgrader/steps"
	"github.com/node-upgrader/node-upgrader/steps/cri"
)

// NodeName is the node's name in its cluster.
const NodeName = "n1"

// The versions that a node has and that its bundle brings.
const (
	OldKubernetes = "v1.35.4"
	NewKubernetes = "v1.36.3"
	OldContainerd = "1.7.35"
	NewContainerd = "2.3.7"
)

// Node is a node in a directory: root is the host's root, bundle what it is
// upgraded with.
type Node struct {
	Role steps.Role

	dir   string
	fs    hostexec.FS
	world *world
	watch hostexec.Watch
}

// Open opens the node in a directory as it is. watch is told of every change; it
// may be nil.
func Open(dir string, watch hostexec.Watch) (*Node, error) {
	n := &Node{Role: steps.Worker, dir: dir, watch: watch}
	n.fs = hostexec.NewFS(n.Root())
	var err error
	if n.world, err = openWorld(filepath.Join(dir, "world.json"), n.Root()); err != nil {
		return nil, err
	}
	if n.world.s.API == "" {
		n.Role = steps.ControlPlane
	}
	return n, nil
}

// Root is the directory of the host's root.
func (n *Node) Root() string { return filepath.Join(n.dir, "root") }

// Env is the node as the steps see it. Each call has a bundle that was not
// looked at yet, as each process of the upgrader has.
func (n *Node) Env(o steps.Options) (steps.Env, error) {
	bundle, err := image.Open(filepath.Join(n.dir, "bundle"))
	if err != nil {
		return steps.Env{}, err
	}
	kube := func(context.Context) (kubernetes.Interface, error) { return api{n}.connect(), nil }
	watch := files{n.watch}
	record := steps.NewRecord(n.fs.Watched(watch), o.RunID)
	record.Journal().Describe(steps.Run{
		ID: o.RunID, Bundle: bundle.Digest, Kubernetes: NewKubernetes, Node: steps.Node{Name: NodeName, Role: n.Role}, By: "skeleton",
	}, n.now)
	return steps.Env{
		Host: hostexec.Host{FS: n.fs, Commands: commands{n}, Units: units{n}}, Watch: watch,
		Bundle: bundle, Node: steps.Node{Name: NodeName, Role: n.Role}, Record: record,
		Program: steps.Store + "/" + strings.TrimPrefix(bundle.Digest, "sha256:") + "/upgrader",
		Runtime: func(context.Context) (cri.Client, error) { return connection{n.world}, nil },
		Kube:    kube, Admin: kube, Probe: n.probe,
		Clock:   steps.Clock{Now: n.now, Sleep: sleep},
		Log:     slog.New(slog.DiscardHandler),
		Staging: steps.Staging{Upgrader: filepath.Join(n.dir, "upgrader"), BootID: fmt.Sprint("boot-", n.world.s.BootID)},
		Options: o,
	}, nil
}

// files tells of the changes of files alone: the services, the programs and the
// API server tell of theirs themselves.
type files struct{ hostexec.Watch }

func (f files) concerns(e hostexec.Effect) bool {
	switch e.Op {
	case hostexec.OpMkdir, hostexec.OpWrite, hostexec.OpRename, hostexec.OpLink, hostexec.OpSymlink,
		hostexec.OpRemove, hostexec.OpRemoveAll, hostexec.OpAppend, hostexec.OpControl:
		return f.Watch != nil
	}
	return false
}

func (f files) Before(e hostexec.Effect) error {
	if f.concerns(e) {
		return f.Watch.Before(e)
	}
	return nil
}

func (f files) After(e hostexec.Effect, err error) {
	if f.concerns(e) {
		f.Watch.After(e, err)
	}
}

// sleep is a clock's on which nobody wakes up often: it costs a look each time.
func sleep(ctx context.Context, d time.Duration) error {
	return steps.SystemClock().Sleep(ctx, max(d, 3*time.Second))
}

func (n *Node) now() time.Time {
	n.world.mu.Lock()
	defer n.world.mu.Unlock()
	return n.world.now()
}

// effect makes one change. refused, when not nil, makes the change's own error
// of the watch's.
func (n *Node) effect(e hostexec.Effect, refused func(error) error, change func() error) error {
	var said error
	err := hostexec.Change(n.watch, e, func() error { said = change(); return said })
	if err != nil && said == nil && refused != nil {
		return refused(err)
	}
	return err
}

// probe asks a health endpoint of the kubelet or of a static pod.
func (n *Node) probe(ctx context.Context, endpoint string) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	u, err := url.Parse(endpoint)
	if err != nil {
		return err
	}
	return n.world.look(func(s *state) error {
		if k := s.Units[kubeletUnit]; u.Port() == "10248" && k.Runs != "" && runsWell(k.Runs) {
			return nil
		}
		for _, c := range s.Containers {
			if u.Port() == port(c.Name) {
				return nil
			}
		}
		return &url.Error{Op: "Get", URL: endpoint, Err: syscall.ECONNREFUSED}
	})
}

// Crash takes the power away, and gives it back: no service runs, no process and
// no timer is left. Programs and files are as they were. Boot starts the
// services then.
func (n *Node) Crash() error {
	return n.world.change(func(s *state) error {
		for _, u := range s.Units {
			u.ActiveState, u.SubState, u.Runs, u.MainPID = "inactive", "dead", "", 0
		}
		s.Boot, s.Timers, s.Containers = s.Now, nil, nil
		s.BootID++
		return os.RemoveAll(filepath.Join(n.Root(), "proc"))
	})
}

// Boot is what systemd does after a Crash: recover, if that was enabled, and then
// the services.
func (n *Node) Boot(ctx context.Context, recover func(context.Context) error) error {
	enabled, err := n.fs.Exists("/etc/systemd/system/multi-user.target.wants/" + steps.RecoveryUnit)
	if err != nil {
		return err
	}
	if enabled {
		err = recover(ctx)
	}
	for _, name := range []string{containerdUnit, kubeletUnit} {
		err = errors.Join(err, units{n}.Start(ctx, name))
	}
	return err
}

// Armed are the timers that are armed.
func (n *Node) Armed() (timers []string, err error) {
	err = n.world.look(func(s *state) error {
		timers = slices.Sorted(maps.Keys(s.Timers))
		return nil
	})
	return timers, err
}

// Running is the version of the program that each service runs, "" for one that
// does not run.
func (n *Node) Running() (containerd, kubelet string, err error) {
	err = n.world.look(func(s *state) error {
		containerd, kubelet = s.Units[containerdUnit].version(), s.Units[kubeletUnit].version()
		return nil
	})
	return containerd, kubelet, err
}

// Cordoned tells whether the node is closed to new pods, and Pods which of the
// API server's pods are there.
func (n *Node) Cordoned() (cordoned bool, pods []string, err error) {
	err = n.world.look(func(s *state) error {
		cordoned = s.Node.Spec.Unschedulable
		for _, p := range s.Pods {
			pods = append(pods, p.Name)
		}
		return nil
	})
	return cordoned, pods, err
}

// Works is nil for a node that does its work: both services run what lies at
// their places, what belongs together is of one age, and the control plane, if
// the node has one, is whole.
func (n *Node) Works() error {
	var wrong []error
	err := n.world.look(func(s *state) error {
		for _, name := range []string{containerdUnit, kubeletUnit} {
			u := s.Units[name]
			text, err := n.text(u.ExecStart[0][0])
			if err != nil || u.Runs == "" || u.Runs != text {
				wrong = append(wrong, fmt.Errorf("%s is %s and runs %q, %q lies there (%w)", name, u.ActiveState, u.Runs, text, err))
			}
		}
		if n.Role == steps.ControlPlane {
			for _, c := range components() {
				text, err := n.text(manifest(c))
				if err != nil || imageIn(text) == "" {
					wrong = append(wrong, fmt.Errorf("the manifest of %s: %q, %w", c, text, err))
				}
			}
		}
		return nil
	})
	ages := map[string][]string{}
	for _, p := range []string{containerdPath, shimPath, ctrPath, runcPath} {
		text, err := n.text(p)
		age := "old"
		if text == newPrograms()[filepath.Base(p)] {
			age = "new"
		}
		ages[age] = append(ages[age], p)
		wrong = append(wrong, err)
	}
	if len(ages) != 1 {
		wrong = append(wrong, fmt.Errorf("containerd's programs are of two ages: %v", ages))
	}
	return errors.Join(append(wrong, err)...)
}

// text is a file of the host.
func (n *Node) text(path string) (string, error) {
	data, err := n.fs.ReadFile(path)
	return string(data), err
}

// at is the path, as this process sees it, of a program that is run by its path
// on the host or in the bundle.
func (n *Node) at(path string) (string, error) {
	if strings.HasPrefix(path, n.dir+"/") {
		return path, nil
	}
	real, err := n.fs.Resolve(path)
	if err != nil {
		return "", err
	}
	if info, err := os.Stat(real); err != nil || info.Mode()&0o100 == 0 {
		return "", fmt.Errorf("%s: cannot be run: %w", path, err)
	}
	return real, nil
}
