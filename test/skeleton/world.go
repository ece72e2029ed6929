package skeleton

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/node-upgrader/node-upgrader/hostexec"
	"github.com/node-upgrader/node-upgrader/steps/cri"
)

// world is what the node's services are doing. It lives in a file: what was
// saved is there for the next process.
type world struct {
	file, root string
	opened     time.Time

	mu     sync.Mutex
	s      state
	uptime string // as it was written last
}

// state is the world's file.
type state struct {
	// Now is the node's time when this was written; Boot is when it booted.
	Now, Boot  time.Time
	BootID     int
	PID        int // the last that was given to a process
	Units      map[string]*unit
	Timers     map[string][]string // what they start, when they are armed
	Containers []cri.Container
	Node       corev1.Node
	Lease      time.Time // the kubelet's last sign of life
	Pods       []corev1.Pod
	// Cluster is ClusterConfiguration's version; API is the API server's where
	// it is another node's, as it is for a worker.
	Cluster, API string
}

// unit is a service with the program that its process runs.
type unit struct {
	hostexec.Unit
	Runs    string // the text of the program, "" when it is stopped
	Started time.Time
}

// version is the running program's, "" when none runs.
func (u *unit) version() string {
	_, v, _ := strings.Cut(u.Runs, " ")
	return v
}

func openWorld(file, root string) (*world, error) {
	w := &world{file: file, root: root, opened: time.Now()}
	data, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(data, &w.s)
	}
	return w, err
}

// now is the node's time: it goes on from where the last process left it.
func (w *world) now() time.Time { return w.s.Now.Add(time.Since(w.opened)) }

// change changes the world and saves it, so that it is as it was before or as it
// is afterwards, whenever the process is killed.
func (w *world) change(f func(*state) error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tick()
	err := f(&w.s)
	w.tick()
	return errors.Join(err, w.save())
}

// look reads the world as it is now.
func (w *world) look(f func(*state) error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.tick() {
		if err := w.save(); err != nil {
			return err
		}
	}
	return f(&w.s)
}

func (w *world) save() error {
	data, err := json.Marshal(w.s)
	if err != nil {
		return err
	}
	if err := os.WriteFile(w.file+".new", data, 0o600); err != nil {
		return err
	}
	return os.Rename(w.file+".new", w.file)
}

// tick is what goes on by itself: time, what the kubelet tells the API server,
// and the pods that it starts and stops. It tells whether anything that has to
// be saved has changed.
func (w *world) tick() bool {
	s := &w.s
	s.Now = w.now()
	w.opened = time.Now()
	uptime := fmt.Sprintf("%.2f 0.00\n", s.Now.Sub(s.Boot).Seconds())
	if uptime != w.uptime {
		if err := w.write("/proc/uptime", uptime, 0o444); err != nil {
			panic(err) // the scratch directory is gone
		}
		w.uptime = uptime
	}
	kubelet, runtime := s.Units[kubeletUnit], s.Units[containerdUnit]
	if kubelet.Runs == "" || !runsWell(kubelet.Runs) {
		return false
	}
	changed := false
	if s.Now.Sub(kubelet.Started) > time.Second && s.Now.Sub(s.Lease) > time.Second {
		s.Lease, changed = s.Now, true
		s.Node.Status.NodeInfo.KubeletVersion = kubelet.version()
	}
	if runtime.Runs == "" || !runsWell(runtime.Runs) {
		return changed
	}
	return w.startPods() || changed
}

// startPods makes what runs the same as the manifests and the API server's pods,
// as the kubelet does.
func (w *world) startPods() bool {
	s, changed := &w.s, false
	want := map[string]cri.Container{}
	for _, component := range components() {
		manifest, err := os.ReadFile(filepath.Join(w.root, manifest(component)))
		if ref := imageIn(string(manifest)); err == nil && ref != "" {
			want[component+" "+ref] = cri.Container{
				ID: component + " " + ref, Namespace: "kube-system", Pod: component + "-" + NodeName, Name: component, ImageID: imageID(ref),
			}
		}
	}
	for _, p := range s.Pods {
		want[string(p.UID)] = cri.Container{ID: string(p.UID), Namespace: p.Namespace, Pod: p.Name, Name: "main", ImageID: imageID("main")}
	}
	s.Containers = slices.DeleteFunc(s.Containers, func(c cri.Container) bool {
		_, stays := want[c.ID]
		delete(want, c.ID)
		if !stays {
			changed = true
			w.end(c.PID)
		}
		return !stays
	})
	for _, c := range want {
		c.PID = w.process("container")
		c.Started = w.ticks()
		s.Containers = append(s.Containers, c)
		changed = true
	}
	slices.SortFunc(s.Containers, func(a, b cri.Container) int { return strings.Compare(a.ID, b.ID) })
	return changed
}

// ticks are those of /proc since the boot.
func (w *world) ticks() uint64 {
	return uint64(w.s.Now.Sub(w.s.Boot) / (10 * time.Millisecond)) //nolint:gosec // after the boot
}

// process makes a process that runs a program of this text.
func (w *world) process(text string) int {
	w.s.PID++
	dir := fmt.Sprintf("/proc/%d", w.s.PID)
	stat := fmt.Sprintf("%d (a) name) S 1%s %d 0\n", w.s.PID, strings.Repeat(" 0", 17), w.ticks())
	if err := errors.Join(w.write(dir+"/exe", text, 0o755), w.write(dir+"/stat", stat, 0o444)); err != nil {
		panic(err) // the scratch directory is gone
	}
	return w.s.PID
}

func (w *world) end(pid int) {
	if err := os.RemoveAll(filepath.Join(w.root, "proc", fmt.Sprint(pid))); err != nil {
		panic(err) // the scratch directory is gone
	}
}

// write puts a file of the kernel's into the root.
func (w *world) write(path, text string, mode os.FileMode) error {
	real := filepath.Join(w.root, path)
	if err := os.MkdirAll(filepath.Dir(real), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(real+".new", []byte(text), mode); err != nil {
		return err
	}
	return os.Rename(real+".new", real)
}
