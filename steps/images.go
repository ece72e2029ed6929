package steps

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/node-upgrader/node-upgrader/hostexec"
	"github.com/node-upgrader/node-upgrader/image"
	"github.com/node-upgrader/node-upgrader/steps/cri"
)

// What is done to images, as a hostexec.Effect. None of it changes what runs.
const (
	OpImportImage = "import-image"
	OpPullImage   = "pull-image"
	OpPinImage    = "pin-image"
	OpUnpinImage  = "unpin-image"
)

// imageNeed is an image that the node will need for what is still to be done.
type imageNeed struct {
	name string
	// brought is the bundle's; nil: it has to be pulled where it is not there.
	brought *image.ContainerImage
	have    *cri.Image // what containerd has under the name; nil: nothing
	// optional: the upgrade does without it, where neither the bundle nor a
	// registry has it.
	optional bool
	left     bool // optional, and could not be pulled
}

// here tells whether a container can be made of it.
func (n imageNeed) here() bool { return n.have != nil && n.have.Ready }

// ours tells whether nothing is left to do: it is here and pinned, for this
// bundle or by somebody else.
func (n imageNeed) ours(env Env) bool {
	return n.here() && n.have.Pinned && (n.have.PinnedBy == "" || n.have.PinnedBy == env.Bundle.Digest)
}

// clashes tells whether another image has the name of the bundle's. Where it
// came from and in which form does not matter: its id would be the same.
func (n imageNeed) clashes() bool { return n.brought != nil && n.here() && n.have.ID != n.brought.ID }

// imagesLook is what was found of the images that the node will need.
type imagesLook struct {
	needs       []imageNeed
	snapshotter string
	root        string // containerd's, where images are unpacked
	unknown     string // why it cannot be told now, "" when it can
	blocks      []Block
}

// lookImages asks the bundle's kubeadm and containerd which images this node
// will need, and the node's containerd which it has. It changes nothing. Where
// kubeadm has done its work here, what runs has its image, and the kubelet may
// collect the rest: all that is left to bring is what a new containerd will make
// pods with, as long as the installed one does not.
func lookImages(ctx context.Context, env Env) (imagesLook, error) {
	l := imagesLook{snapshotter: "overlayfs", root: "/var/lib/containerd"}
	k, err := lookKubeadm(ctx, env)
	if ctx.Err() != nil {
		return l, context.Cause(ctx)
	}
	done := err == nil && !k.upgrade && k.settled && len(k.stale) == 0
	daemon, err := findContainerd(ctx, env.Host)
	if errors.Is(err, errNoUnit) { // the containerd step's to refuse
		if !done {
			l.unknown = err.Error()
		}
		return l, nil
	}
	if err != nil {
		return l, err
	}
	config, err := installedConfig(ctx, env.Host, daemon)
	if err != nil {
		return l, err
	}
	l.snapshotter, l.root = config.snapshotter(), config.rootDir()
	var needs []imageNeed
	if done {
		needs, err = changedSandbox(ctx, env, daemon, config)
	} else {
		needs, err = neededImages(ctx, env, daemon)
	}
	var refused *hostexec.CommandError
	switch {
	case errors.Is(err, hostexec.ErrNotOnHost):
		l.unknown = notTried
		return l, nil
	case errors.As(err, &refused) && ctx.Err() == nil:
		l.blocks = append(l.blocks, Block{Reason: "the bundle's kubeadm does not tell which images it needs: " + refused.Error(), Hint: strings.Join(refused.Argv, " ")})
		return l, nil
	case err != nil || len(needs) == 0:
		return l, err
	}
	return l, l.compare(ctx, env, needs)
}

// compare fills in what the bundle and the node have.
func (l *imagesLook) compare(ctx context.Context, env Env, needs []imageNeed) error {
	brought, err := env.Bundle.Images(ctx)
	if err != nil {
		return err
	}
	client, err := env.Runtime(ctx)
	if err != nil {
		l.unknown = err.Error()
		return nil
	}
	defer client.Close()
	for _, n := range needs {
		n.brought = broughtAs(brought, n.name)
		if n.have, err = client.Image(ctx, n.name, l.snapshotter); err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			// The containerd step will see to it, and kubeadm's looks again.
			l.unknown, l.needs, l.blocks = err.Error(), nil, nil
			return nil
		}
		if n.clashes() {
			l.blocks = append(l.blocks, Block{
				Reason: fmt.Sprintf("image %s is on this node as %.19s, and the bundle's is %.19s", n.name, n.have.ID, n.brought.ID),
				Hint:   fmt.Sprintf("if the bundle's is the right one: ctr -n k8s.io images rm %s (containers that run go on); else build the bundle with the other", n.name),
			})
		}
		l.needs = append(l.needs, n)
	}
	return nil
}

// broughtAs is the bundle's image for a name, as CRI has it: that with the digest
// of the name; without one that with the name, else the only one with its last
// part, since a cluster may have its images in a registry of its own.
func broughtAs(brought []image.ContainerImage, name string) *image.ContainerImage {
	var same []*image.ContainerImage
	_, digest, byDigest := strings.Cut(name, "@")
	for i := range brought {
		b := &brought[i]
		have := cri.ImageName(b.Name)
		if byDigest && b.Target.Digest.String() == digest || have == name {
			return b
		}
		if !byDigest && path.Base(have) == path.Base(name) && !slices.ContainsFunc(same, func(o *image.ContainerImage) bool { return o.ID == b.ID }) {
			same = append(same, b)
		}
	}
	if len(same) == 1 {
		return same[0]
	}
	return nil
}

// missing are the images that a container cannot be made of yet.
func (l imagesLook) missing() []imageNeed {
	return slices.DeleteFunc(slices.Clone(l.needs), imageNeed.here)
}

// due are those of them without which there is no upgrade, and those that only
// have to be imported.
func (l imagesLook) due() []imageNeed {
	return slices.DeleteFunc(l.missing(), func(n imageNeed) bool { return n.optional && n.brought == nil })
}

// state adds what is to be done to the images to that of the copy step. One that
// the upgrade does without gives no reason to run, and is pulled by a run that
// has another. others are what else the step demands of the disks.
func (l imagesLook) state(env Env, s *State, others ...demand) error {
	due := l.due()
	if l.unknown != "" {
		s.Facts = append(s.Facts, Fact{Name: "images", Have: "cannot be told: " + l.unknown})
	} else if len(l.needs) > 0 {
		want := len(l.needs) - len(l.missing()) + len(due)
		s.Facts = append(s.Facts, Fact{"images", fmt.Sprint(want - len(due)), fmt.Sprint(want)})
	}
	for _, n := range due {
		change := Change{"pull", n.name}
		if n.brought != nil {
			change.Verb = "import"
		}
		s.Changes = append(s.Changes, change)
	}
	for _, n := range l.needs {
		if n.here() && !n.ours(env) {
			s.Changes = append(s.Changes, Change{"pin", n.name})
		}
	}
	for _, n := range l.missing() {
		if !n.optional || n.brought != nil {
			continue
		}
		s.Facts = append(s.Facts, Fact{Name: n.name, Have: "not on this node, and not in the bundle: pods that need it wait until the kubelet can pull it; else " + bringByHand + n.name})
		if len(s.Changes) > 0 || s.Phase == Needed {
			s.Changes = append(s.Changes, Change{"pull", n.name})
		}
	}
	s.Blocks = append(s.Blocks, l.blocks...)
	room, err := l.room(env, others...)
	if err != nil {
		return err
	}
	s.Blocks = append(s.Blocks, room...)
	switch {
	case len(s.Blocks) > 0:
		s.Phase = Blocked
	case len(s.Changes) > 0:
		s.Phase = Needed
	}
	return nil
}

// unpackedTimes is how much larger a compressed layer is on the disk.
const unpackedTimes = 4

// room blocks where containerd's disk has not enough left for the images, with
// what else is demanded of it.
func (l imagesLook) room(env Env, others ...demand) ([]Block, error) {
	images := demand{dir: l.root, what: "importing the bundle's images", hint: "crictl rmi --prune removes images that nothing uses"}
	seen := map[string]bool{}
	for _, n := range l.missing() {
		if n.brought == nil {
			continue
		}
		for _, b := range n.brought.Blobs {
			if seen[b.SHA256] {
				continue
			}
			seen[b.SHA256] = true
			size := uint64(b.Size) //nolint:gosec // validated: positive
			images.bytes += size + size
			if strings.HasSuffix(b.MediaType, "gzip") || strings.HasSuffix(b.MediaType, "zstd") {
				images.bytes += size * (unpackedTimes - 1)
			}
		}
	}
	return roomForAll(env, append(others, images)...)
}
