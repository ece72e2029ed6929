package critest

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/node-upgrader/node-upgrader/steps/cri"
)

// store changes the record of an image, which may not be there yet.
func (c *client) store(name string, change func(*cri.Image)) {
	c.r.Change(func(s *State) {
		s.Stored = maps.Clone(s.Stored)
		if s.Stored == nil {
			s.Stored = map[string]cri.Image{}
		}
		i := s.Stored[name]
		change(&i)
		s.Stored[name] = i
	})
}

func (c *client) Image(ctx context.Context, name, _ string) (*cri.Image, error) {
	s, err := c.ask(ctx)
	if err != nil {
		return nil, err
	}
	if i, ok := s.Stored[name]; ok {
		return &i, nil
	}
	if id, ok := s.Images[name]; ok {
		return &cri.Image{ID: id, Ready: true, Pinned: true}, nil
	}
	return nil, nil //nolint:nilnil // there is none
}

func (c *client) Import(ctx context.Context, i cri.Import) error {
	s, err := c.ask(ctx)
	if err != nil {
		return err
	}
	if s.Importing != nil {
		if err := s.Importing(i); err != nil {
			return err
		}
	}
	c.store(i.Name, func(o *cri.Image) {
		*o = cri.Image{ID: i.Image.ID, Ready: true, Pinned: true, PinnedBy: i.Bundle.Digest}
	})
	return nil
}

func (c *client) Pull(ctx context.Context, name string) error {
	s, err := c.ask(ctx)
	if err != nil {
		return err
	}
	id, ok := s.Registry[name]
	if !ok {
		return fmt.Errorf("critest: pull image %s: no registry answers", name)
	}
	c.store(cri.ImageName(name), func(o *cri.Image) { o.ID, o.Ready = id, true })
	return nil
}

func (c *client) Pin(ctx context.Context, name, bundle string) error {
	s, err := c.ask(ctx)
	if err != nil {
		return err
	}
	i, ok := s.Stored[name]
	switch {
	case !ok && s.Images[name] == "":
		return errors.New("critest: pin image " + name + ": there is none")
	case !ok, i.Pinned && i.PinnedBy == "": // somebody else's
		return nil
	}
	c.store(name, func(o *cri.Image) { o.Pinned, o.PinnedBy = true, bundle })
	return nil
}

func (c *client) PinnedImages(ctx context.Context) (map[string]string, error) {
	s, err := c.ask(ctx)
	pinned := map[string]string{}
	for name, i := range s.Stored {
		if i.PinnedBy != "" {
			pinned[name] = i.PinnedBy
		}
	}
	return pinned, err
}

func (c *client) Unpin(ctx context.Context, name string) error {
	s, err := c.ask(ctx)
	if err == nil && s.Stored[name].PinnedBy != "" {
		c.store(name, func(o *cri.Image) { o.Pinned, o.PinnedBy = false, "" })
	}
	return err
}
