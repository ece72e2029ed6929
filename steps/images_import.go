package steps

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/node-upgrader/node-upgrader/image"
	"github.com/node-upgrader/node-upgrader/steps/cri"
)

// bringByHand is what else there is for an image that cannot be pulled.
const bringByHand = "use a bundle that brings the images (upgrader bundle build --images), or bring them: ctr -n k8s.io images import FILE; or mend the way to the registry: crictl pull "

// importAll brings what the bundle has, read from bundle, and pins all that is
// needed. Images are only added: nothing that runs notices. It is idempotent; cut
// short, the next call goes on with the image at which it was.
func (l imagesLook) importAll(ctx context.Context, env Env, bundle *image.Bundle) error {
	client, err := env.Runtime(ctx)
	if err != nil {
		return err
	}
	defer client.Close()
	for _, n := range l.needs {
		if n.here() || n.brought == nil {
			continue
		}
		env.Log.Info("importing", "image", n.name, "mib", n.brought.Size()>>20)
		err := env.change(OpImportImage, n.name, func() error {
			return client.Import(ctx, cri.Import{Name: n.name, Snapshotter: l.snapshotter, Image: *n.brought, Bundle: bundle})
		})
		if err != nil {
			return err
		}
	}
	return l.pinAll(ctx, env, client)
}

// pinAll pins what was there or was pulled; what is imported is pinned already.
func (l imagesLook) pinAll(ctx context.Context, env Env, client cri.Client) error {
	for _, n := range l.needs {
		if n.ours(env) || !n.here() && (n.brought != nil || n.left) {
			continue
		}
		if err := env.change(OpPinImage, n.name, func() error { return client.Pin(ctx, n.name, env.Bundle.Digest) }); err != nil {
			return err
		}
	}
	return nil
}

// pullAll has containerd pull what the bundle does not bring: with its own
// mirrors and credentials, which nobody else could try. The first that cannot be
// pulled is a *BlockedError: nothing else has been changed. What the upgrade does
// without comes last, and is a warning.
func (l *imagesLook) pullAll(ctx context.Context, env Env) error {
	var must, may []*imageNeed
	for i := range l.needs {
		switch n := &l.needs[i]; {
		case n.here() || n.brought != nil:
		case n.optional:
			may = append(may, n)
		default:
			must = append(must, n)
		}
	}
	if len(must)+len(may) == 0 {
		return nil
	}
	client, err := env.Runtime(ctx)
	if err != nil {
		return err
	}
	defer client.Close()
	for i, n := range slices.Concat(must, may) {
		env.Log.Info("pulling", "image", n.name)
		err := env.change(OpPullImage, n.name, func() error { return client.Pull(ctx, n.name) })
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err == nil:
		case n.optional:
			n.left = true
			env.Log.Warn("an image that this node may run is not here and cannot be pulled; the upgrade goes on without it",
				"image", n.name, "reason", err.Error(), "do", bringByHand+n.name)
		default:
			return notPulled(n.name, err, must[i+1:])
		}
	}
	return nil
}

// notPulled refuses for an image that is not there. rest are not there either.
func notPulled(name string, err error, rest []*imageNeed) error {
	reason := fmt.Sprintf("image %s is not on this node and cannot be pulled: %v", name, err)
	if len(rest) > 0 {
		names := make([]string, len(rest))
		for i, o := range rest {
			names[i] = o.name
		}
		reason += "; not on this node either: " + strings.Join(names, ", ")
	}
	return &BlockedError{Blocks: []Block{{Reason: reason, Hint: bringByHand + name}}}
}
