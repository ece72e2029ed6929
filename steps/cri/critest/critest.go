// Package critest has a fake container runtime.
package critest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/node-upgrader/node-upgrader/steps/cri"
)

// ErrDown is the answer of a runtime that does not run.
var ErrDown = errors.New("critest: the runtime is down")

// Runtime is a containerd that runs what it was told. Its fields may be changed
// between calls with Change. The zero value is down.
type Runtime struct {
	mu    sync.Mutex
	state State
	open  int
}

// State is what a Runtime answers.
type State struct {
	Version    string // "" is a runtime that is down
	NotReady   error
	Containers []cri.Container
	Images     map[string]string // reference: id; all are ready, and pinned by somebody
	// Stored are containerd's own records, beside Images, by name.
	Stored map[string]cri.Image
	// Registry has what can be pulled, by name: the id. Without the name, or
	// without a registry, a pull is refused.
	Registry map[string]string
	// Importing is called before each import: its error is the import's.
	Importing func(cri.Import) error
	Ended     []string // ids of containers that ended by themselves
	// RemovePod is the error of each removal; nil removes the pod's containers.
	RemovePod error
}

// New is a runtime of this state.
func New(s State) *Runtime { return &Runtime{state: s} }

// Change changes the state.
func (r *Runtime) Change(change func(*State)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.state)
}

// Open counts the clients that were not closed.
func (r *Runtime) Open() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.open
}

// Dial is for steps.Env.Runtime.
func (r *Runtime) Dial(context.Context) (cri.Client, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open++
	return &client{r: r}, nil
}

type client struct {
	r      *Runtime
	closed bool
}

// ask returns what the runtime says now.
func (c *client) ask(ctx context.Context) (State, error) {
	c.r.mu.Lock()
	defer c.r.mu.Unlock()
	s := c.r.state
	s.Containers = slices.Clone(s.Containers)
	switch {
	case ctx.Err() != nil:
		return s, context.Cause(ctx)
	case c.closed:
		return s, errors.New("critest: the client is closed")
	case s.Version == "":
		return s, ErrDown
	}
	return s, nil
}

func (c *client) Version(ctx context.Context) (string, error) {
	s, err := c.ask(ctx)
	return s.Version, err
}

func (c *client) Ready(ctx context.Context) error {
	s, err := c.ask(ctx)
	return errors.Join(err, s.NotReady)
}

func (c *client) Containers(ctx context.Context) ([]cri.Container, error) {
	s, err := c.ask(ctx)
	return s.Containers, err
}

func (c *client) ImageID(ctx context.Context, ref string) (string, error) {
	s, err := c.ask(ctx)
	if i, ok := s.Stored[ref]; ok && i.Ready {
		return i.ID, err
	}
	return s.Images[ref], err
}

func (c *client) Ended(ctx context.Context, id string) (bool, error) {
	s, err := c.ask(ctx)
	return slices.Contains(s.Ended, id), err
}

func (c *client) RemovePod(ctx context.Context, namespace, name string) error {
	s, err := c.ask(ctx)
	if err := errors.Join(err, s.RemovePod); err != nil {
		return err
	}
	c.r.Change(func(s *State) {
		s.Containers = slices.DeleteFunc(slices.Clone(s.Containers), func(of cri.Container) bool {
			return of.Namespace == namespace && of.Pod == name
		})
	})
	return nil
}

func (c *client) Close() error {
	c.r.mu.Lock()
	defer c.r.mu.Unlock()
	if c.closed {
		return fmt.Errorf("critest: closed twice")
	}
	c.closed = true
	c.r.open--
	return nil
}
