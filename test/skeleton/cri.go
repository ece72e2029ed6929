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

// Image is what somebody has brought and pinned: all images are there.
func (r connection) Image(ctx context.Context, name, _ string) (*cri.Image, error) {
	return &cri.Image{ID: imageID(name), Ready: true, Pinned: true}, r.ask(ctx, func(*state) {})
}

func (r connection) Import(_ context.Context, i cri.Import) error {
	return errors.New("skeleton: unexpected import of " + i.Name)
}

func (r connection) Pull(_ context.Context, name string) error {
	return errors.New("skeleton: unexpected pull of " + name)
}

func (r connection) Pin(_ context.Context, name, _ string) error {
	return errors.New("skeleton: unexpected pin of " + name)
}

func (r connection) PinnedImages(ctx context.Context) (map[string]string, error) {
	return nil, r.ask(ctx, func(*state) {})
}

func (r connection) Unpin(_ context.Context, name string) error {
	return errors.New("skeleton: unexpected end of the pin of " + name)
}

func (r connection) Close() error { return nil }
