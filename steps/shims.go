package steps

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	taskv2 "github.com/containerd/containerd/api/runtime/task/v2"
	"github.com/containerd/ttrpc"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/node-upgrader/node-upgrader/hostexec"
	"github.com/node-upgrader/node-upgrader/steps/cri"
)

// At its start containerd asks the shim of every container for the container's
// processes. Where there are none, and no sandbox record either, it takes the
// shim for leaked, forgets the container and deletes its directory
// (shouldCleanupShim in containerd's core/runtime/v2/shim_load.go; 1.7 does the
// same, and never wrote sandbox records). The kubelet then makes the pod again.
//
// The shim answers with what `runc ps` says: the processes in the container's
// cgroup, on cgroup v1 in the devices hierarchy only. A container that runs,
// but whose processes were moved out of that one cgroup, is thus thrown away:
// see shims_cgroup.go for how that comes about and what is done about it.

// shimTimeout is containerd's own patience with a shim at its start
// (io.containerd.timeout.shim.load).
const shimTimeout = 5 * time.Second

// shim is what containerd keeps on disk of a container's shim, in the directory
// that it loads the container from at its start.
type shim struct {
	ID, Dir string
	// namespace is containerd's: k8s.io for pods, moby for Docker.
	namespace string
	// Pod and Container are for people; Container is "" for a sandbox.
	Pod, Container string
	binary         string // the shim's program, "" when not recorded
	pid            int    // of the container's first process, 0 when not recorded
}

func (s shim) String() string {
	switch {
	case s.Pod == "":
		return "container " + s.ID
	case s.Container == "":
		return "sandbox of pod " + s.Pod
	}
	return "container " + s.Container + " of pod " + s.Pod
}

// listShims reads the shims of all containers, of pods and others.
func listShims(host hostexec.FS, stateDir string) ([]shim, error) {
	root := path.Join(stateDir, "io.containerd.runtime.v2.task")
	namespaces, err := visible(host, root)
	if err != nil {
		return nil, err
	}
	var shims []shim
	for _, ns := range namespaces {
		ids, err := visible(host, path.Join(root, ns))
		if err != nil {
			return nil, err
		}
		for _, id := range ids {
			s, err := readShim(host, path.Join(root, ns, id))
			if err != nil {
				return nil, err
			}
			s.namespace = ns
			shims = append(shims, s)
		}
	}
	return shims, nil
}

// visible are the names in a directory that containerd would load.
func visible(host hostexec.FS, dir string) ([]string, error) {
	entries, err := host.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() && !strings.HasPrefix(e.Name(), ".") {
			names = append(names, e.Name())
		}
	}
	return names, err
}

func readShim(host hostexec.FS, dir string) (shim, error) {
	s := shim{ID: path.Base(dir), Dir: dir}
	read := func(name string) ([]byte, error) {
		data, err := host.ReadFile(path.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil // an older containerd, or a container that just ended
		}
		return data, err
	}
	binary, err := read("shim-binary-path")
	if err != nil {
		return s, err
	}
	s.binary = string(binary)
	pid, err := read("init.pid")
	if err != nil {
		return s, err
	}
	s.pid, _ = strconv.Atoi(strings.TrimSpace(string(pid)))
	spec, err := read("config.json")
	if err != nil {
		return s, err
	}
	var oci struct {
		Annotations map[string]string `json:"annotations"`
	}
	if json.Unmarshal(spec, &oci) == nil { // a half-written one has no name yet
		const cri = "io.kubernetes.cri."
		if name := oci.Annotations[cri+"sandbox-name"]; name != "" {
			s.Pod = oci.Annotations[cri+"sandbox-namespace"] + "/" + name
		}
		s.Container = oci.Annotations[cri+"container-name"]
	}
	return s, nil
}

// loss is a container that runs and that containerd would throw away at its
// start.
type loss struct {
	shim
	pid int // its first process
	why string
}

// findLosses asks each shim what the starting containerd will ask it. It needs
// no containerd and changes nothing.
func findLosses(ctx context.Context, env Env, stateDir string, atOnce int) ([]loss, error) {
	shims, err := listShims(env.Host.FS, stateDir)
	if err != nil {
		return nil, fmt.Errorf("list the shims: %w", err)
	}
	var (
		mu     sync.Mutex
		losses []loss
	)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for _, s := range shims {
		group.Go(func() error {
			l, err := askShim(ctx, env, stateDir, s)
			if err == nil && l != nil {
				mu.Lock()
				defer mu.Unlock()
				losses = append(losses, *l)
			}
			return err
		})
	}
	err = group.Wait()
	slices.SortFunc(losses, func(a, b loss) int { return strings.Compare(a.String()+a.ID, b.String()+b.ID) })
	return losses, err
}

// askShim returns nil for a container that containerd will keep, and for one
// that does not run, which it is right to clean away.
func askShim(ctx context.Context, env Env, stateDir string, s shim) (*loss, error) {
	asking, cancel := context.WithTimeout(ctx, shimTimeout)
	defer cancel()
	task, pids, err := s.processes(asking, env.Host.FS)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	l := &loss{shim: s, pid: task, why: "its shim finds none of its processes"}
	switch {
	case errors.Is(err, errNotAsked):
		return nil, nil
	case task == 0 && err == nil:
		return nil, nil // made half-way; nothing runs
	case err == nil && pids > 0:
		return nil, nil
	case err != nil:
		l.why = err.Error()
	}
	if l.pid == 0 {
		l.pid = s.pid
	}
	if l.pid <= 0 {
		return nil, nil
	}
	state, _, err := readRuncState(env, stateDir, s)
	if err != nil {
		return nil, err
	}
	alive, err := state.started(env, l.pid)
	if err != nil || !alive {
		return nil, err
	}
	return l, nil
}

// errNotAsked is a shim that speaks what we do not. Those are not runc's.
var errNotAsked = errors.New("shim of another protocol")

// processes is the number of the container's first process and how many the
// shim finds. Where task is not 0, err is of the latter alone.
func (s shim) processes(ctx context.Context, host hostexec.FS) (task, found int, err error) {
	address, err := s.address(host)
	if err != nil {
		return 0, 0, err
	}
	conn, err := host.Dialer(address)(ctx)
	if err != nil {
		return 0, 0, fmt.Errorf("its shim cannot be reached: %w", err)
	}
	client := ttrpc.NewClient(conn)
	defer client.Close()
	// Shims of 1.x serve version 2 only and those of 2.x version 3 only. The
	// messages are the same. What is on disk is no help: 2.x writes 3 for a
	// container in a sandbox of 1.7, too, and finds out by asking.
	for _, service := range []string{"containerd.task.v3.Task", "containerd.task.v2.Task"} {
		var is taskv2.ConnectResponse
		if err = client.Call(ctx, service, "Connect", &taskv2.ConnectRequest{ID: s.ID}, &is); status.Code(err) == codes.Unimplemented {
			continue
		}
		if err != nil {
			return 0, 0, fmt.Errorf("its shim does not answer: %w", err)
		}
		task = int(is.GetTaskPid())
		var pids taskv2.PidsResponse
		if err := client.Call(ctx, service, "Pids", &taskv2.PidsRequest{ID: s.ID}, &pids); err != nil {
			return task, 0, fmt.Errorf("its shim cannot find its processes: %w", err)
		}
		return task, len(pids.GetProcesses()), nil
	}
	return 0, 0, errNotAsked
}

// address is the path of the shim's socket: in bootstrap.json since containerd
// 2.0, in the file address before.
func (s shim) address(host hostexec.FS) (string, error) {
	var address string
	data, err := host.ReadFile(path.Join(s.Dir, "bootstrap.json"))
	switch {
	case err == nil:
		var params struct{ Address, Protocol string }
		if err := json.Unmarshal(data, &params); err != nil {
			return "", fmt.Errorf("read %s/bootstrap.json: %w", s.Dir, err)
		}
		if params.Protocol != "ttrpc" {
			return "", errNotAsked
		}
		address = params.Address
	case errors.Is(err, os.ErrNotExist):
		data, err := host.ReadFile(path.Join(s.Dir, "address"))
		if err != nil {
			return "", fmt.Errorf("its shim has no address: %w", err)
		}
		address = strings.TrimSpace(string(data))
	default:
		return "", err
	}
	if p, ok := strings.CutPrefix(address, "unix://"); ok && path.IsAbs(p) {
		return p, nil
	}
	return "", errNotAsked
}

// runs tells whether a process is there and has not ended.
func runs(host hostexec.FS, pid int) (bool, error) {
	if pid <= 0 {
		return false, nil
	}
	_, err := cri.ProcessStart(host, pid)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}
