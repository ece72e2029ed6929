// Package cri is the node's container runtime as the steps see it: what
// containerd says of itself and of the containers that it runs, whether their
// processes are the same ones as before, and which images it has.
package cri

import (
	"context"
	"time"
)

// Client is a connection to the node's containerd.
type Client interface {
	// Version is containerd's own version without a leading "v".
	Version(ctx context.Context) (string, error)
	// Ready is nil when the runtime and the network conditions of CRI hold.
	// The network's is left out until a CNI configuration exists.
	Ready(ctx context.Context) error
	// Containers lists the pods' sandboxes and containers that CRI knows and
	// that run.
	Containers(ctx context.Context) ([]Container, error)
	// ImageID is the id of an image by its reference; "" when it is not there.
	ImageID(ctx context.Context, ref string) (string, error)
	// Ended tells whether a container that does not run any more ended by
	// itself or was removed. It is false for one that containerd lost.
	Ended(ctx context.Context, id string) (bool, error)
	// RemovePod stops and removes all sandboxes of a pod with their containers.
	// One that is not there is not an error. The kubelet, where it runs, makes
	// the pod again.
	RemovePod(ctx context.Context, namespace, name string) error
	Images
	Close() error
}

// Container is a running container or sandbox of a pod.
type Container struct {
	ID        string    `json:"id"`
	Sandbox   bool      `json:"sandbox"`
	Namespace string    `json:"namespace"`
	Pod       string    `json:"pod"`
	Name      string    `json:"name"` // "" for a sandbox
	Attempt   uint32    `json:"attempt"`
	ImageID   string    `json:"imageID,omitempty"`
	PID       int       `json:"pid"`
	Started   uint64    `json:"started"` // of the process, in clock ticks after boot (proc_pid_stat(5), field 22)
	Created   time.Time `json:"created"`
}
