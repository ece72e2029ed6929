package steps

import (
	"context"
	"maps"
	"slices"
)

// releaseImages takes the upgrader's pins off the images of bundles that no run
// is of any more that is open or kept: the kubelet may collect them then. It is
// called at the end of a run that has come to its target, and a failure does not
// undo that.
func releaseImages(ctx context.Context, env Env, used map[string]bool) error {
	if env.Runtime == nil {
		return nil
	}
	client, err := env.Runtime(ctx)
	if err != nil {
		return err
	}
	defer client.Close()
	pinned, err := client.PinnedImages(ctx)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(pinned)) {
		if used[bundleDir(pinned[name])] {
			continue
		}
		env.Log.Info("an older bundle's image may be collected", "image", name)
		if err := env.change(OpUnpinImage, name, func() error { return client.Unpin(ctx, name) }); err != nil {
			return err
		}
	}
	return nil
}
