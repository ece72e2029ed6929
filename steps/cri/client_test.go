package cri

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	versionapi "github.com/containerd/containerd/api/services/version/v1"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

// containerd is what the fake services answer; anything else asked of them is
// "unimplemented".
type containerd struct {
	images     map[string]string // name: id
	version    string
	conditions []*runtimeapi.RuntimeCondition
	config     string
	statuses   map[string]*runtimeapi.ContainerStatus
	did        []string
}

type versionService struct {
	versionapi.UnimplementedVersionServer
	c *containerd
}

func (s versionService) Version(context.Context, *emptypb.Empty) (*versionapi.VersionResponse, error) {
	return &versionapi.VersionResponse{Version: s.c.version}, nil
}

type taskService struct {
	tasksapi.UnimplementedTasksServer
}

func (taskService) List(ctx context.Context, _ *tasksapi.ListTasksRequest) (*tasksapi.ListTasksResponse, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	if ns := md.Get("containerd-namespace"); len(ns) != 1 || ns[0] != "k8s.io" {
		return nil, status.Errorf(codes.FailedPrecondition, "namespace %v", ns)
	}
	return &tasksapi.ListTasksResponse{Tasks: []*tasktypes.Process{{ID: "sandbox", Pid: 10}, {ID: "app", Pid: 11}, {ID: "ended", Pid: 12}}}, nil
}

type runtimeService struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	c *containerd
}

func (s runtimeService) Status(context.Context, *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	return &runtimeapi.StatusResponse{
		Status: &runtimeapi.RuntimeStatus{Conditions: s.c.conditions}, Info: map[string]string{"config": s.c.config},
	}, nil
}

func (runtimeService) ListPodSandbox(context.Context, *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	meta := &runtimeapi.PodSandboxMetadata{Name: "pod", Namespace: "ns", Attempt: 3}
	return &runtimeapi.ListPodSandboxResponse{Items: []*runtimeapi.PodSandbox{
		{Id: "sandbox", Metadata: meta, State: runtimeapi.PodSandboxState_SANDBOX_READY, CreatedAt: 1e9},
		{Id: "old", Metadata: meta, State: runtimeapi.PodSandboxState_SANDBOX_NOTREADY},
	}}, nil
}

func (s runtimeService) StopPodSandbox(_ context.Context, r *runtimeapi.StopPodSandboxRequest) (*runtimeapi.StopPodSandboxResponse, error) {
	s.c.did = append(s.c.did, "stop "+r.GetPodSandboxId())
	return &runtimeapi.StopPodSandboxResponse{}, nil
}

func (s runtimeService) RemovePodSandbox(_ context.Context, r *runtimeapi.RemovePodSandboxRequest) (*runtimeapi.RemovePodSandboxResponse, error) {
	s.c.did = append(s.c.did, "remove "+r.GetPodSandboxId())
	return &runtimeapi.RemovePodSandboxResponse{}, nil
}

func (runtimeService) ListContainers(context.Context, *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	labels := map[string]string{podLabel: "pod", namespaceLabel: "ns"}
	meta := &runtimeapi.ContainerMetadata{Name: "app", Attempt: 2}
	return &runtimeapi.ListContainersResponse{Containers: []*runtimeapi.Container{
		{Id: "app", PodSandboxId: "sandbox", Metadata: meta, Labels: labels, ImageRef: "sha256:1", State: runtimeapi.ContainerState_CONTAINER_RUNNING, CreatedAt: 2e9},
		{Id: "ended", PodSandboxId: "sandbox", Metadata: meta, Labels: labels, State: runtimeapi.ContainerState_CONTAINER_EXITED},
	}}, nil
}

func (s runtimeService) ContainerStatus(_ context.Context, r *runtimeapi.ContainerStatusRequest) (*runtimeapi.ContainerStatusResponse, error) {
	if st := s.c.statuses[r.GetContainerId()]; st != nil {
		return &runtimeapi.ContainerStatusResponse{Status: st}, nil
	}
	return nil, status.Error(codes.NotFound, "no such container")
}

type imageService struct {
	runtimeapi.UnimplementedImageServiceServer
	c *containerd
}

func (s imageService) ImageStatus(_ context.Context, r *runtimeapi.ImageStatusRequest) (*runtimeapi.ImageStatusResponse, error) {
	if id := s.c.images[r.GetImage().GetImage()]; id != "" {
		return &runtimeapi.ImageStatusResponse{Image: &runtimeapi.Image{Id: id}}, nil
	}
	if r.GetImage().GetImage() == "here:1" {
		return &runtimeapi.ImageStatusResponse{Image: &runtimeapi.Image{Id: "sha256:1"}}, nil
	}
	return &runtimeapi.ImageStatusResponse{}, nil
}

// serve starts c on a host's socket and returns the host's root and a client.
func serve(t *testing.T, c *containerd) (string, Client) {
	t.Helper()
	root, err := os.MkdirTemp("", "c") //nolint:usetesting // short: a socket's path has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(root) })
	write(t, root, "run/containerd/x", "")
	listener, err := net.Listen("unix", filepath.Join(root, "run/containerd/containerd.sock"))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	versionapi.RegisterVersionServer(server, versionService{c: c})
	tasksapi.RegisterTasksServer(server, taskService{})
	runtimeapi.RegisterRuntimeServiceServer(server, runtimeService{c: c})
	runtimeapi.RegisterImageServiceServer(server, imageService{c: c})
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	client, err := Dial(t.Context(), hostexec.NewFS(root), DefaultSocket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return root, client
}

func write(t *testing.T, root, name, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, name), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestContainers(t *testing.T) {
	root, client := serve(t, &containerd{version: "v2.3.7"})
	stat := " S 1 1 1 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 "
	write(t, root, "proc/10/stat", "10 (pause)"+stat+"100 0 0")
	write(t, root, "proc/11/stat", "11 (a) S 9 (b)"+stat+"110 0 0")
	got, err := client.Containers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := []Container{
		{ID: "sandbox", Sandbox: true, Namespace: "ns", Pod: "pod", Attempt: 3, PID: 10, Started: 100, Created: time.Unix(1, 0).UTC()},
		{ID: "app", Namespace: "ns", Pod: "pod", Name: "app", Attempt: 2, ImageID: "sha256:1", PID: 11, Started: 110, Created: time.Unix(2, 0).UTC()},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if v, err := client.Version(t.Context()); v != "2.3.7" || err != nil {
		t.Errorf("version %q %v", v, err)
	}
	for ref, want := range map[string]string{"here:1": "sha256:1", "there:1": ""} {
		if id, err := client.ImageID(t.Context(), ref); id != want || err != nil {
			t.Errorf("%s: %q %v", ref, id, err)
		}
	}
}

// All of a pod's sandboxes go, also those that do not run, and no other's.
func TestRemovePod(t *testing.T) {
	c := &containerd{}
	_, client := serve(t, c)
	for _, pod := range []string{"other", "pod"} {
		if err := client.RemovePod(t.Context(), "ns", pod); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]string{"stop sandbox", "remove sandbox", "stop old", "remove old"}, c.did); diff != "" {
		t.Error(diff)
	}
}

func TestReady(t *testing.T) {
	condition := func(kind string, status bool) *runtimeapi.RuntimeCondition {
		return &runtimeapi.RuntimeCondition{Type: kind, Status: status, Reason: "because"}
	}
	runtime, network := runtimeapi.RuntimeReady, runtimeapi.NetworkReady
	for name, c := range map[string]struct {
		conditions []*runtimeapi.RuntimeCondition
		config     string
		file       string
		want       string
	}{
		"all":                         {[]*runtimeapi.RuntimeCondition{condition(runtime, true), condition(network, true)}, "", "", ""},
		"runtime":                     {[]*runtimeapi.RuntimeCondition{condition(runtime, false)}, "", "", "RuntimeReady is false: because"},
		"network":                     {[]*runtimeapi.RuntimeCondition{condition(network, false)}, "", "etc/cni/net.d/10-a.conflist", "NetworkReady is false"},
		"network without one":         {[]*runtimeapi.RuntimeCondition{condition(network, false)}, "", "", ""},
		"network, only a leftover":    {[]*runtimeapi.RuntimeCondition{condition(network, false)}, "", "etc/cni/net.d/10-a.conflist.bak", ""},
		"network, configured place":   {[]*runtimeapi.RuntimeCondition{condition(network, false)}, `{"cni":{"confDir":"/etc/my"}}`, "etc/my/a.conf", "NetworkReady"},
		"deprecated settings warning": {[]*runtimeapi.RuntimeCondition{condition("ContainerdHasNoDeprecationWarnings", false)}, "", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			root, client := serve(t, &containerd{conditions: c.conditions, config: c.config})
			if c.file != "" {
				write(t, root, c.file, "{}")
			}
			err := client.Ready(t.Context())
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

func TestEnded(t *testing.T) {
	exited := runtimeapi.ContainerState_CONTAINER_EXITED
	_, client := serve(t, &containerd{statuses: map[string]*runtimeapi.ContainerStatus{
		"done":    {State: exited, Reason: "Completed"},
		"failed":  {State: exited, Reason: "Error", ExitCode: 1},
		"lost":    {State: exited, Reason: "Unknown", ExitCode: 255},
		"unknown": {State: runtimeapi.ContainerState_CONTAINER_UNKNOWN},
		"running": {State: runtimeapi.ContainerState_CONTAINER_RUNNING},
	}})
	for id, want := range map[string]bool{"done": true, "failed": true, "removed": true, "lost": false, "unknown": false, "running": false} {
		if got, err := client.Ended(t.Context(), id); got != want || err != nil {
			t.Errorf("%s: %v %v", id, got, err)
		}
	}
}

func TestRuntimeIsDown(t *testing.T) {
	client, err := Dial(t.Context(), hostexec.NewFS(t.TempDir()), DefaultSocket)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := client.Version(t.Context()); err == nil {
		t.Error("no error")
	}
}

func TestStartTime(t *testing.T) {
	const rest = " S 0 1 1 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 7 0 0"
	for stat, ok := range map[string]bool{
		"1 (systemd)" + rest: true, "1 (a) S 1 (b)" + rest: true, "1 ()) ((1)" + rest: true,
		"": false, "1 (a": false, "1 (a) S 0 1": false,
	} {
		if got, err := startTime([]byte(stat)); (err == nil) != ok || ok && got != 7 {
			t.Errorf("%q: %d %v", stat, got, err)
		}
	}
}

func FuzzStartTime(f *testing.F) {
	f.Add("systemd")
	f.Add("a (b c")
	f.Fuzz(func(t *testing.T, name string) {
		if strings.Contains(name, ")") {
			return
		}
		stat := "1 (" + name + ") S 0 1 1 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 7 0 0"
		if got, err := startTime([]byte(stat)); got != 7 || err != nil {
			t.Errorf("%q: %d %v", stat, got, err)
		}
		_, _ = startTime([]byte(name))
	})
}
