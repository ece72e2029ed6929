package cri

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	ctrd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/node-upgrader/node-upgrader/image"
)

// Labels of an image in containerd. The first is CRI's: the kubelet does not
// collect an image that has it (crilabels.PinnedImageLabelKey in containerd's
// internal/cri/labels). The second says that the pin is the upgrader's, and for
// which bundle.
const (
	pinnedLabel   = "io.cri-containerd.pinned"
	pinnedValue   = "pinned"
	PinnedByLabel = "io.github.node-upgrader.pinned-by"
)

// gcLabel keeps from containerd's garbage collection what a blob refers to.
const gcLabel = "containerd.io/gc.ref.content."

// Image is what containerd has under a name.
type Image struct {
	// ID is CRI's: the digest of the configuration; "" when containerd has not
	// even that.
	ID string
	// Ready: a container can be made of it, and CRI knows it.
	Ready bool
	// Pinned against the kubelet's garbage collection; PinnedBy is the digest of
	// the bundle for which the upgrader did it, "" when somebody else did.
	Pinned   bool
	PinnedBy string
}

// Images is containerd's store of images, of the namespace in which CRI and the
// kubelet have theirs. A name is one as CRI has it: see ImageName.
type Images interface {
	// Image is what containerd has under a name, for a snapshotter; nil when
	// there is nothing.
	Image(ctx context.Context, name, snapshotter string) (*Image, error)
	// Import makes a bundle's image one that a container can be made of, under a
	// name, pinned for a bundle. What is there already is not read again, so that
	// it can be repeated at any time: the name is given last. A record of that
	// name that is not Ready is replaced. A blob that is not what the bundle says
	// is a *image.BadBundleError.
	Import(context.Context, Import) error
	// Pull has containerd pull an image with its own configuration.
	Pull(ctx context.Context, name string) error
	// Pin pins an image for a bundle. Another bundle's pin becomes this one's;
	// what somebody else has pinned stays his.
	Pin(ctx context.Context, name, bundle string) error
	// PinnedImages are the images that the upgrader has pinned, and for which
	// bundle.
	PinnedImages(context.Context) (map[string]string, error)
	// Unpin takes the upgrader's pin off an image, and nobody else's.
	Unpin(ctx context.Context, name string) error
}

// Import is what is imported.
type Import struct {
	Name, Snapshotter string
	Image             image.ContainerImage
	Bundle            *image.Bundle
}

// importLease is how long containerd keeps what a killed import has left.
const importLease = time.Hour

func (c *client) Image(ctx context.Context, name, snapshotter string) (*Image, error) {
	ctx = namespaces.WithNamespace(ctx, namespace)
	record, err := c.containerd.ImageService().Get(ctx, name)
	if errdefs.IsNotFound(err) {
		return nil, nil //nolint:nilnil // there is none
	}
	if err != nil {
		return nil, fmt.Errorf("ask containerd for image %s: %w", name, err)
	}
	i := &Image{Pinned: record.Labels[pinnedLabel] == pinnedValue, PinnedBy: record.Labels[PinnedByLabel]}
	img := ctrd.NewImage(c.containerd, record)
	config, err := img.Config(ctx)
	if errdefs.IsNotFound(err) {
		return i, nil
	}
	if err != nil {
		return nil, fmt.Errorf("ask containerd for image %s: %w", name, err)
	}
	i.ID = config.Digest.String()
	unpacked, err := img.IsUnpacked(ctx, snapshotter)
	if errdefs.IsNotFound(err) {
		return i, nil
	}
	if err != nil {
		return nil, fmt.Errorf("ask containerd for image %s: %w", name, err)
	}
	if !unpacked {
		return i, nil
	}
	// CRI learns of an image by an event, a moment later.
	id, err := c.ImageID(ctx, name)
	i.Ready = id == i.ID
	return i, err
}

func (c *client) Import(ctx context.Context, i Import) error {
	if err := c.importImage(namespaces.WithNamespace(ctx, namespace), i); err != nil {
		return fmt.Errorf("import image %s: %w", i.Name, err)
	}
	return nil
}

func (c *client) importImage(ctx context.Context, i Import) (err error) {
	// Without a lease containerd may collect what no name refers to yet.
	ctx, done, err := c.containerd.WithLease(ctx, leases.WithRandomID(), leases.WithExpiration(importLease))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, done(context.WithoutCancel(ctx))) }()
	for _, blob := range i.Image.Blobs {
		if err := writeBlob(ctx, c.containerd.ContentStore(), i.Bundle, blob); err != nil {
			return err
		}
	}
	record := images.Image{
		Name: i.Name,
		Target: ocispec.Descriptor{
			MediaType: string(i.Image.Target.MediaType), Digest: digest.Digest(i.Image.Target.Digest.String()), Size: i.Image.Target.Size,
		},
		Labels: map[string]string{pinnedLabel: pinnedValue, PinnedByLabel: i.Bundle.Digest},
	}
	if err := ctrd.NewImage(c.containerd, record).Unpack(ctx, i.Snapshotter); err != nil {
		return err
	}
	_, err = c.containerd.ImageService().Create(ctx, record)
	if errdefs.IsAlreadyExists(err) {
		_, err = c.containerd.ImageService().Update(ctx, record, "target", "labels."+pinnedLabel, "labels."+PinnedByLabel)
	}
	return err
}

// writeBlob copies a blob into containerd's store, which compares it with its
// digest as well. One that is there is only told again what it refers to.
func writeBlob(ctx context.Context, store content.Store, bundle *image.Bundle, blob image.Blob) error {
	info := content.Info{Digest: digest.Digest(blob.Digest()), Labels: map[string]string{}}
	var fields []string
	for n, child := range blob.Children {
		key := fmt.Sprintf("%s%d", gcLabel, n)
		info.Labels[key] = child
		fields = append(fields, "labels."+key)
	}
	r, err := bundle.ReadBlob(ctx, blob)
	if err != nil {
		return err
	}
	defer r.Close()
	d := ocispec.Descriptor{MediaType: blob.MediaType, Digest: info.Digest, Size: blob.Size}
	if err := content.WriteBlob(ctx, store, "node-upgrader-"+blob.SHA256, onlyReader{r}, d, content.WithLabels(info.Labels)); err != nil {
		return fmt.Errorf("blob %s: %w", blob.Digest(), err)
	}
	if len(fields) == 0 {
		return nil
	}
	if _, err := store.Update(ctx, info, fields...); err != nil {
		return fmt.Errorf("blob %s: %w", blob.Digest(), err)
	}
	return nil
}

// onlyReader hides what else a reader could do: what was hashed is what is read.
type onlyReader struct{ io.Reader }

func (c *client) Pull(ctx context.Context, name string) error {
	_, err := runtimeapi.NewImageServiceClient(c.conn).PullImage(ctx,
		&runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: name}})
	if err != nil {
		return fmt.Errorf("pull image %s: %w", name, err)
	}
	return nil
}

func (c *client) Pin(ctx context.Context, name, bundle string) error {
	ctx = namespaces.WithNamespace(ctx, namespace)
	store := c.containerd.ImageService()
	record, err := store.Get(ctx, name)
	if err == nil && (record.Labels[pinnedLabel] != pinnedValue || record.Labels[PinnedByLabel] != "") {
		record.Labels = map[string]string{pinnedLabel: pinnedValue, PinnedByLabel: bundle}
		_, err = store.Update(ctx, record, "labels."+pinnedLabel, "labels."+PinnedByLabel)
	}
	if err != nil {
		return fmt.Errorf("pin image %s: %w", name, err)
	}
	return nil
}

func (c *client) PinnedImages(ctx context.Context) (map[string]string, error) {
	list, err := c.containerd.ImageService().List(namespaces.WithNamespace(ctx, namespace), fmt.Sprintf("labels.%q", PinnedByLabel))
	if err != nil {
		return nil, fmt.Errorf("list the pinned images: %w", err)
	}
	pinned := map[string]string{}
	for _, record := range list {
		pinned[record.Name] = record.Labels[PinnedByLabel]
	}
	return pinned, nil
}

func (c *client) Unpin(ctx context.Context, name string) error {
	ctx = namespaces.WithNamespace(ctx, namespace)
	store := c.containerd.ImageService()
	record, err := store.Get(ctx, name)
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err == nil && record.Labels[PinnedByLabel] != "" {
		record.Labels = map[string]string{} // a label without a value is removed
		_, err = store.Update(ctx, record, "labels."+pinnedLabel, "labels."+PinnedByLabel)
	}
	if err != nil {
		return fmt.Errorf("unpin image %s: %w", name, err)
	}
	return nil
}

// patienceFor is how long one call may take: a containerd that hangs takes
// connections and never answers. Stopping a pod waits for its containers to end,
// unpacking a layer for the disk, and pulling for the network.
func patienceFor(method string) time.Duration {
	const (
		answers = 15 * time.Second
		works   = 2 * time.Minute
		unpacks = 10 * time.Minute
	)
	switch {
	case strings.HasSuffix(method, "/StopPodSandbox"), strings.HasSuffix(method, "/RemovePodSandbox"),
		strings.Contains(method, ".Snapshots/"), strings.Contains(method, ".Images/"), strings.Contains(method, ".Leases/"):
		return works
	case strings.HasSuffix(method, "Diff/Apply"), strings.HasSuffix(method, "/PullImage"):
		return unpacks
	}
	return answers
}
