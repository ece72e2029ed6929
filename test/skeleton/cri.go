package skeleton

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"slices"

	"github.com/node-upgrader/node-upgrader/steps/cri"
)

// connection is one to the node's containerd.
type connection struct{ w *world }

// imageID is the id of an image that is on the node: all are.
func imageID(ref string) string { return "sha256:" + digest(ref) }

func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

func (r connection) ask(ctx context.Context, f func(*state)) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return r.w.look(func(s *state) error {
		if u := s.Units[containerdUnit]; u.Runs == "" || !runsWell(u.Runs) {
			return errors.New("skeleton: containerd does not answer")
		}
		f(s)
		return nil
	})
}

func (r connection) Version(ctx context.Context) (v string, err error) {
	err = r.ask(ctx, func(s *state) { v = s.Units[containerdUnit].version() })
	return v, err
}

func (r connection) Ready(ctx context.Context) error { return r.ask(ctx, func(*state) {}) }

func (r connection) Containers(ctx context.Context) (found []cri.Container, err error) {
	err = r.ask(ctx, func(s *state) { found = slices.Clone(s.Containers) })
	return found, err
}

func (r connection) ImageID(ctx context.Context, ref string) (string, error) {
	return imageID(ref), r.ask(ctx, func(*state) {})
}

// Ended is true: a container that is not there was removed by the kubelet.
func (r connection) Ended(ctx context.Context, _ string) (bool, error) {
	return true, r.ask(ctx, func(*state) {})
}

// RemovePod ends a pod's containers; the kubelet, where it runs, starts others.
func (r connection) RemovePod(ctx context.Context, namespace, name string) error {
	if err := r.ask(ctx, func(*state) {}); err != nil {
		return err
	}
	return r.w.change(func(s *state) error {
		s.Containers = slices.DeleteFunc(s.Containers, func(c cri.Container) bool {
			gone := c.Namespace == namespace && c.Pod == name
			if gone {
				r.w.end(c.PID)
			}
			return gone
		})
		return nil
	})
}

func (r connection) Close() error { return nil }
