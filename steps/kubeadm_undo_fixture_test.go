package steps

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/node-upgrader/node-upgrader/hostexec"
	"github.com/node-upgrader/node-upgrader/hostexec/hostexectest"
	"github.com/node-upgrader/node-upgrader/steps/cri"
	"github.com/node-upgrader/node-upgrader/steps/cri/critest"
)

func (n *kubeadmNode) units() *hostexectest.Units {
	n.t.Helper()
	u, ok := n.env.Host.Units.(*hostexectest.Units)
	if !ok {
		n.t.Fatalf("units are %T", n.env.Host.Units)
	}
	return u
}

// kubeletWorks makes the kubelet do what it does: while it runs, the static pods
// are those of the manifests, and the node is reported.
func (n *kubeadmNode) kubeletWorks() {
	n.t.Helper()
	boot := n.now.Add(-time.Hour)
	n.units().OnStart(kubeletUnit, func(pid int) error {
		ticks := int64(n.now.Sub(boot).Seconds() * ticksPerSecond)
		n.write(fmt.Sprintf("/proc/%d/stat", pid), fmt.Sprintf("%d (kubelet) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 %d 0 0\n", pid, ticks), 0o444)
		n.write("/proc/uptime", fmt.Sprintf("%.2f 0.00\n", n.now.Sub(boot).Seconds()), 0o444)
		return n.syncPods()
	})
	sleep := n.env.Clock.Sleep
	n.env.Clock.Sleep = func(ctx context.Context, d time.Duration) error {
		n.write("/proc/uptime", fmt.Sprintf("%.2f 0.00\n", n.now.Add(d).Sub(boot).Seconds()), 0o444)
		unit, err := n.env.Host.Units.Show(ctx, kubeletUnit)
		if err == nil && unit.ActiveState == "active" {
			n.report()
			err = n.syncPods()
		}
		return errors.Join(err, sleep(ctx, d))
	}
}

func (n *kubeadmNode) syncPods() error {
	if n.env.Node.Role == Worker {
		return nil
	}
	for _, c := range controlPlane() {
		manifest := n.read(manifestPath(c))
		switch {
		case manifest == "":
			n.runtime.Change(func(s *critest.State) { s.Containers = withoutContainer(s.Containers, c) })
		case strings.Contains(manifest, imageOf(c, oldVersion)):
			n.runAs(c, oldVersion)
		case strings.Contains(manifest, imageOf(c, newVersion)):
			n.runAs(c, newVersion)
		default:
			return fmt.Errorf("the kubelet cannot read %s: %q", manifestPath(c), manifest)
		}
		if c == etcdName && manifest != "" && n.read(etcdMemberDir+"/snap/db") == "" {
			return errors.New("etcd was started without its data: it makes a new cluster")
		}
		if c == kubeAPIServer && strings.Contains(manifest, oldVersion) {
			n.apiServerAt(oldVersion)
		} else if c == kubeAPIServer && manifest != "" {
			n.apiServerAt(newVersion)
		}
	}
	return nil
}

// report is the kubelet's heartbeat.
func (n *kubeadmNode) report() {
	n.t.Helper()
	nodes := n.api.CoreV1().Nodes()
	node, err := nodes.Get(n.t.Context(), testNode, metav1.GetOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	node.Status.Conditions = []corev1.NodeCondition{{
		Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.NewTime(n.now.Add(time.Second)),
	}}
	if _, err := nodes.Update(n.t.Context(), node, metav1.UpdateOptions{}); err != nil {
		n.t.Fatal(err)
	}
}

// host is what a rollback has to bring back: every file but the upgrader's own
// and the kernel's, with its mode, the record of a finished kubeadm, and
// directories.
func (n *kubeadmNode) host() map[string]string {
	n.t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(n.fs.Root(), func(real string, e os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		p := n.fs.HostPath(real)
		if p == path.Join(StateDir, "runs") || p == "/proc" {
			return filepath.SkipDir
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		files[p] = info.Mode().String()
		if info.Mode().IsRegular() {
			files[p] += " " + n.read(p)
		}
		return nil
	})
	if err != nil {
		n.t.Fatal(err)
	}
	delete(files, StateDir)
	delete(files, path.Dir(StateDir))
	return files
}

// undo rolls the step back, as `upgrader rollback` does: without a bundle.
func (n *kubeadmNode) undo(o Options, watch hostexec.Watch) error {
	n.t.Helper()
	env := n.env
	env.Bundle, env.Options = nil, o
	env.Options.RunID = "test"
	env.Watch = watch
	env.Host = env.Host.Watched(env.watch())
	err := undoKubeadm(n.t.Context(), env)
	if open := n.runtime.Open(); open != 0 {
		n.t.Fatalf("%d connections to the runtime left open", open)
	}
	return err
}

func (n *kubeadmNode) undoBlocks(o Options) []Block {
	n.t.Helper()
	env := n.env
	env.Bundle, env.Options = nil, o
	env.Options.RunID = "test"
	blocks, err := kubeadmUndoBlocks(n.t.Context(), env)
	if err != nil {
		n.t.Fatal(err)
	}
	return blocks
}

// failsAt refuses the change with this number, counted from 0, and all that
// follow it, as a crash there does.
type failsAt struct {
	n, seen int
	at      string // what was refused first
}

var errCrash = errors.New("crash")

func (f *failsAt) Before(e hostexec.Effect) error {
	f.seen++
	if f.seen <= f.n {
		return nil
	}
	if f.at == "" {
		f.at = e.String()
	}
	return errCrash
}

func (f *failsAt) After(hostexec.Effect, error) {}

func withoutContainer(all []cri.Container, name string) []cri.Container {
	return slices.DeleteFunc(slices.Clone(all), func(c cri.Container) bool { return c.Name == name })
}

func forgetImage(ref string) func(*critest.State) {
	return func(s *critest.State) {
		images := maps.Clone(s.Images)
		delete(images, ref)
		s.Images = images
	}
}
