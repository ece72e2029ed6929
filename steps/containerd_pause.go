package steps

import "context"

// sandboxImage is the image of every pod's first container, the pause image:
// where 2.x has it, else where 1.7 has it.
func (c containerdConfig) sandboxImage() string {
	if s := c.root.table("plugins", criImages, "pinned_images").text("sandbox"); s != "" {
		return s
	}
	return c.root.table("plugins", criPlugin).text("sandbox_image")
}

// guardSandboxImage looks whether pods can still be started where the default
// image of their sandboxes changes with the version. The new containerd would
// pull it, but nobody can tell from here whether a registry answers; where none
// does, no pod starts any more, and putting the old files back comes too late:
// CRI is ready all the while. So the image has to be on the node before: the copy
// step brings it.
func (g *containerdGuard) guardSandboxImage(ctx context.Context, env Env, before, after containerdConfig) error {
	image := after.sandboxImage()
	if image == "" || image == before.sandboxImage() {
		return nil
	}
	client, err := env.Runtime(ctx)
	if err != nil {
		return nil //nolint:nilerr // a containerd that does not answer is to be replaced all the more
	}
	defer client.Close()
	id, err := client.ImageID(ctx, image)
	if err != nil {
		return nil //nolint:nilerr // as above
	}
	if id != "" {
		g.facts = append(g.facts, Fact{Name: "sandbox image", Have: image})
		return nil
	}
	if env.copyFirst { // it brings the image, or refuses
		g.facts = append(g.facts, Fact{Name: "sandbox image", Have: "not on this node", Want: image})
		return nil
	}
	g.block("upgrader copy brings it, from the bundle or by pulling it; or crictl pull "+image+"; without a registry: ctr -n k8s.io images import FILE; or set the sandbox image in containerd's configuration",
		"containerd %s starts pods with %s, which is not on this node", wantContainerd(env), image)
	return nil
}
