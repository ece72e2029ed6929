package steps

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	taskv2 "github.com/containerd/containerd/api/runtime/task/v2"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/ttrpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// fakeShim answers as runc's shim does: its processes are those in the devices
// cgroup of its container.
type fakeShim struct {
	taskv2.TTRPCTaskService // whatever else is asked ends in a panic
	n                       *containerdNode
	id                      string
	pid                     int
	err                     error
	late                    atomic.Int32 // how often it still fails
}

func (s *fakeShim) Connect(context.Context, *taskv2.ConnectRequest) (*taskv2.ConnectResponse, error) {
	return &taskv2.ConnectResponse{ShimPid: 1, TaskPid: uint32(s.pid)}, nil
}

func (s *fakeShim) Pids(_ context.Context, r *taskv2.PidsRequest) (*taskv2.PidsResponse, error) {
	if s.err != nil {
		return nil, s.err
	}
	if s.late.Add(-1) >= 0 {
		return nil, status.Error(codes.DeadlineExceeded, "a busy machine")
	}
	if r.ID != s.id {
		return nil, status.Error(codes.NotFound, "no container "+r.ID)
	}
	var answer taskv2.PidsResponse
	for pid := range strings.FieldsSeq(s.n.read(s.n.home(s.id) + "/cgroup.procs")) {
		p, _ := strconv.ParseUint(pid, 10, 32)
		answer.Processes = append(answer.Processes, &tasktypes.ProcessInfo{Pid: uint32(p)})
	}
	return &answer, nil
}

// shim gives a container that runs a shim, whose processes are in the devices
// cgroup or not.
func (n *containerdNode) shim(id, pod, name string, pid int, inDevices bool) *fakeShim {
	n.t.Helper()
	c := n.container(id, pod, name, pid)
	dir := "/run/containerd/io.containerd.runtime.v2.task/k8s.io/" + id
	n.write(dir+"/address", "unix:///run/containerd/s/"+id, 0o600)
	n.write(dir+"/shim-binary-path", "/usr/local/bin/containerd-shim-runc-v2", 0o600)
	n.write(dir+"/init.pid", strconv.Itoa(pid), 0o600)
	n.json(dir+"/config.json", map[string]any{"annotations": map[string]string{
		"io.kubernetes.cri.sandbox-name": pod, "io.kubernetes.cri.sandbox-namespace": "kube-system",
		"io.kubernetes.cri.container-name": name,
	}})
	paths := map[string]string{}
	for _, controller := range []string{"devices", "memory", "pids"} {
		paths[controller] = fmt.Sprintf("/sys/fs/cgroup/%s/kubepods.slice/%s.scope", controller, id)
		procs := strconv.Itoa(pid) + "\n"
		if controller == "devices" && !inDevices {
			procs = ""
		}
		n.write(paths[controller]+"/cgroup.procs", procs, 0o644)
	}
	n.json("/run/containerd/runc/k8s.io/"+id+"/state.json", map[string]any{
		"init_process_pid": pid, "init_process_start": c.Started, "cgroup_paths": paths,
	})
	s := &fakeShim{n: n, id: id, pid: pid}
	n.write("/run/containerd/s/x", "", 0o600)
	listener, err := net.Listen("unix", filepath.Join(n.root, "run/containerd/s", id))
	n.must(err)
	server, err := ttrpc.NewServer()
	n.must(err)
	taskv2.RegisterTTRPCTaskService(server, s)
	go func() { _ = server.Serve(context.Background(), listener) }()
	n.t.Cleanup(func() { server.Close() })
	return s
}

func (n *containerdNode) json(path string, v any) {
	n.t.Helper()
	data, err := json.Marshal(v)
	n.must(err)
	n.write(path, string(data), 0o600)
}

func TestShimsWithoutProcessesAreHelped(t *testing.T) {
	n := newContainerdNode(t)
	n.shim("kept", "kube-proxy", "", 31, true)
	n.shim("app", "kube-proxy", "app", 33, true)
	n.shim("lost", "etcd-n1", "", 32, false)
	const home = "/sys/fs/cgroup/devices/kubepods.slice/lost.scope"

	state := n.check()
	want := Change{"move", "process 32 back into " + home + " (sandbox of pod kube-system/etcd-n1)"}
	if state.Phase != Needed || state.Changes[len(state.Changes)-2] != want {
		t.Fatalf("check: %+v", state)
	}
	if n.read(home+"/cgroup.procs") != "" {
		t.Fatal("the check moved a process")
	}
	n.must(runContainerd(t.Context(), n.env))
	if got := n.read(home + "/cgroup.procs"); got != "32\n" {
		t.Errorf("cgroup: %q", got)
	}
	var changed []ChangedContainer
	if _, err := n.env.Record.Load(containersChanged, &changed); err != nil || len(changed) != 0 {
		t.Errorf("changed: %v %v", changed, err)
	}
}

func TestShimsThatCannotBeHelpedBlock(t *testing.T) {
	for name, prepare := range map[string]func(*containerdNode){
		"runc does not know it": func(n *containerdNode) {
			n.shim("lost", "etcd-n1", "", 32, false)
			n.json("/run/containerd/runc/k8s.io/lost/state.json", map[string]any{})
		},
		"the shim fails": func(n *containerdNode) {
			n.shim("lost", "etcd-n1", "", 32, true).err = errors.New("runc: exit status 1")
		},
		"no shim listens": func(n *containerdNode) {
			n.shim("lost", "etcd-n1", "", 32, true)
			n.write("/run/containerd/io.containerd.runtime.v2.task/k8s.io/lost/address", "unix:///run/containerd/s/none", 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newContainerdNode(t)
			prepare(n)
			state := n.check()
			if state.Phase != Blocked || !strings.Contains(state.Blocks[0].Reason, "sandbox of pod kube-system/etcd-n1") ||
				!strings.Contains(state.Blocks[0].Hint, "--drain-first") {
				t.Errorf("check: %+v", state)
			}
			n.env.Options.DrainFirst = true
			if state := n.check(); state.Phase != Needed {
				t.Errorf("check with --drain-first: %+v", state)
			}
		})
	}
}

func TestShimsOfWhatDoesNotRunAreIgnored(t *testing.T) {
	n := newContainerdNode(t)
	n.shim("ended", "job", "", 32, false)
	n.end(32)
	n.shim("reused", "job2", "", 33, false)
	n.process(33, 1, "another process of the same number")
	n.shim("half", "job3", "", 34, false).pid = 0
	n.write("/run/containerd/io.containerd.runtime.v2.task/k8s.io/half/init.pid", "", 0o600)
	if state := n.check(); state.Phase != Needed {
		t.Errorf("check: %+v", state)
	}
	losses, err := findLosses(t.Context(), n.env, defaultStateDir, 1)
	if err != nil || len(losses) != 0 {
		t.Errorf("losses: %+v %v", losses, err)
	}
}

// A shim that answers late, or whose container is being made, is asked again: its
// container is not taken for lost, before the stop or before the start.
func TestShimsThatAnswerLate(t *testing.T) {
	n := newContainerdNode(t)
	s := n.shim("etcd", "etcd-n1", "", 32, true)
	s.late.Store(lossLooks - 1)
	if state := n.check(); state.Phase != Needed {
		t.Errorf("check: %+v", state)
	}
	n.units.OnStop(containerdUnit, func() error {
		s.late.Store(lossLooks - 1)
		return nil
	})
	if err := runContainerd(t.Context(), n.env); err != nil {
		t.Error(err, Hints(err))
	}
	if s.late.Load() >= 0 {
		t.Errorf("it was not asked often enough: %d", s.late.Load())
	}
}

// Processes that leave their cgroup only after the check are found before the
// start, and one that cannot be helped then puts the old containerd back.
func TestShimsAreAskedAgainBeforeTheStart(t *testing.T) {
	n := newContainerdNode(t)
	s := n.shim("etcd", "etcd-n1", "", 32, true)
	n.units.OnStop(containerdUnit, func() error {
		s.err = errors.New("runc: exit status 1")
		return nil
	})
	err := runContainerd(t.Context(), n.env)
	var back *RolledBackError
	if !errors.As(err, &back) || !strings.Contains(err.Error(), "sandbox of pod kube-system/etcd-n1") {
		t.Errorf("error: %v", err)
	}
	if got := n.read("/usr/local/bin/containerd"); got != "containerd 1.7.35" {
		t.Errorf("containerd: %s", got)
	}
	if !n.unit().Running() {
		t.Error("containerd was left stopped")
	}
}
