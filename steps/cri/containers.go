package cri

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

// The kubelet's labels on each container.
const (
	podLabel       = "io.kubernetes.pod.name"
	namespaceLabel = "io.kubernetes.pod.namespace"
)

func (c *client) Containers(ctx context.Context) ([]Container, error) {
	sandboxes, err := c.runtime().ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return nil, fmt.Errorf("list sandboxes: %w", err)
	}
	containers, err := c.runtime().ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	tasks, err := c.containerd.TaskService().List(namespaces.WithNamespace(ctx, namespace), &tasksapi.ListTasksRequest{})
	if err != nil {
		return nil, fmt.Errorf("list containerd's tasks: %w", err)
	}
	pids := make(map[string]int, len(tasks.GetTasks()))
	for _, t := range tasks.GetTasks() {
		pids[t.GetID()] = int(t.GetPid())
	}
	var running []Container
	for _, s := range sandboxes.GetItems() {
		if s.GetState() == runtimeapi.PodSandboxState_SANDBOX_READY {
			running = append(running, Container{
				ID: s.GetId(), Sandbox: true,
				Namespace: s.GetMetadata().GetNamespace(), Pod: s.GetMetadata().GetName(),
				Attempt: s.GetMetadata().GetAttempt(), Created: time.Unix(0, s.GetCreatedAt()).UTC(),
			})
		}
	}
	for _, r := range containers.GetContainers() {
		if r.GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING {
			running = append(running, Container{
				ID: r.GetId(), Namespace: r.GetLabels()[namespaceLabel], Pod: r.GetLabels()[podLabel],
				Name: r.GetMetadata().GetName(), Attempt: r.GetMetadata().GetAttempt(),
				ImageID: r.GetImageRef(), Created: time.Unix(0, r.GetCreatedAt()).UTC(),
			})
		}
	}
	for i := range running {
		if running[i].PID = pids[running[i].ID]; running[i].PID == 0 {
			continue // of a runtime whose sandboxes have no process here
		}
		started, err := ProcessStart(c.fs, running[i].PID)
		if err != nil && !errors.Is(err, os.ErrNotExist) { // ended since
			return nil, err
		}
		running[i].Started = started
	}
	return running, nil
}

func (c *client) RemovePod(ctx context.Context, namespace, name string) error {
	sandboxes, err := c.runtime().ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return fmt.Errorf("list sandboxes: %w", err)
	}
	for _, s := range sandboxes.GetItems() {
		if s.GetMetadata().GetNamespace() != namespace || s.GetMetadata().GetName() != name {
			continue
		}
		_, err := c.runtime().StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: s.GetId()})
		if err != nil {
			return fmt.Errorf("stop sandbox %.12s of pod %s/%s: %w", s.GetId(), namespace, name, err)
		}
		_, err = c.runtime().RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: s.GetId()})
		if err != nil {
			return fmt.Errorf("remove sandbox %.12s of pod %s/%s: %w", s.GetId(), namespace, name, err)
		}
	}
	return nil
}

// ProcessStart is when a process of the host started, in clock ticks after
// boot: together with its number it names the process for as long as the host
// is up. A process that does not exist is os.ErrNotExist.
func ProcessStart(host hostexec.FS, pid int) (uint64, error) {
	name := fmt.Sprintf("/proc/%d/stat", pid)
	stat, err := host.ReadFile(name)
	if err != nil {
		return 0, err
	}
	started, err := startTime(stat)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	return started, nil
}

// startTime is field 22 of a line of proc_pid_stat(5). Field 2 is the program's
// name in brackets and may have spaces and brackets of its own, so fields are
// counted from its last bracket.
func startTime(stat []byte) (uint64, error) {
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 20 {
		return 0, errors.New("not a process's stat line")
	}
	return strconv.ParseUint(string(fields[19]), 10, 64)
}
