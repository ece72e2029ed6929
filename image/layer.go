package image

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sync/errgroup"

	"github.com/node-upgrader/node-upgrader/image/oci"
)

// fileLayer is a layer that lies ready in a file. go-containerregistry's own
// would be compressed anew each time it is asked for its digest or its bytes.
type fileLayer struct {
	what         string // for the image's history
	file         string
	digest, diff v1.Hash
	size         int64
	compression  Compression
}

func (l *fileLayer) Digest() (v1.Hash, error)           { return l.digest, nil }
func (l *fileLayer) DiffID() (v1.Hash, error)           { return l.diff, nil }
func (l *fileLayer) Size() (int64, error)               { return l.size, nil }
func (l *fileLayer) Compressed() (io.ReadCloser, error) { return os.Open(l.file) }

func (l *fileLayer) MediaType() (types.MediaType, error) { return l.compression.mediaType(), nil }

func (l *fileLayer) Uncompressed() (io.ReadCloser, error) {
	f, err := os.Open(l.file)
	if err != nil {
		return nil, err
	}
	r, err := l.compression.reader(f)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return r, nil
}

// plan is a layer to be.
type plan struct {
	what  string
	files []oci.TarFile
}

// plans puts what changes least often first: containerd shares unpacked layers
// up to the first that differs.
func plans(b *Bundle, exe *upgraderFile, manifest []byte, count *meter) []plan {
	order := []string{CNIPlugins, Runc, Containerd, Kubectl, Kubeadm, Kubelet, Images}
	names := make([]string, 0, len(b.Manifest.Components))
	for _, c := range b.Manifest.Components {
		names = append(names, c.Name)
	}
	slices.SortStableFunc(names, func(x, y string) int {
		return cmp.Compare(slices.Index(order, x), slices.Index(order, y))
	})
	var all []plan
	for _, name := range names {
		p := plan{what: name + " " + b.Version(name)}
		for _, f := range b.ComponentFiles(name) {
			p.files = append(p.files, oci.TarFile{
				Name: "bundle/" + f.Path, Mode: int64(f.Mode), Size: f.Size,
				Open: func(ctx context.Context) (io.ReadCloser, error) {
					src, err := b.OpenFile(f)
					if err != nil {
						return nil, err
					}
					return readCloser{newCheckedReader(ctx, src, f, count.add), src}, nil
				},
			})
		}
		all = append(all, p)
	}
	upgrader := oci.TarFile{Name: "upgrader", Mode: 0o755, Size: exe.size(), Open: func(ctx context.Context) (io.ReadCloser, error) {
		return io.NopCloser(&countingReader{ctx, io.NewSectionReader(exe.File, 0, exe.size()), count}), nil
	}}
	list := oci.TarFile{Name: "bundle/" + ManifestName, Mode: 0o644, Size: int64(len(manifest)), Open: func(context.Context) (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(manifest)), nil
	}}
	root := []oci.TarFile{list}
	if sig := b.signature; sig != nil {
		root = append(root, oci.TarFile{Name: "bundle/" + SignatureName, Mode: 0o644, Size: int64(len(sig)), Open: func(context.Context) (io.ReadCloser, error) {
			return io.NopCloser(bytes.NewReader(sig)), nil
		}})
	}
	return append(all, plan{"upgrader", []oci.TarFile{upgrader}}, plan{"manifest " + b.Digest, root})
}

type readCloser struct {
	io.Reader
	io.Closer
}

// startLayers starts to write the layers of one architecture into dir, whose
// files' names get a prefix. They are ready when g is.
func startLayers(ctx context.Context, g *errgroup.Group, p part, c Compression, prefix string, count *meter) ([]*fileLayer, error) {
	manifest, err := readManifest(p.Dir)
	if err != nil {
		return nil, err
	}
	if digestOf(manifest) != p.Digest {
		return nil, badFile(ManifestName, "changed since the bundle was opened")
	}
	all := plans(p.Bundle, p.exe, manifest, count)
	layers := make([]*fileLayer, len(all))
	for i, plan := range all {
		layers[i] = &fileLayer{what: plan.what, file: fmt.Sprint(prefix, i), compression: c}
		g.Go(func() error { return layers[i].write(ctx, plan.files) })
	}
	return layers, nil
}

func (l *fileLayer) write(ctx context.Context, files []oci.TarFile) (err error) {
	f, err := os.Create(l.file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	packed := sha256.New()
	out := &countingWriter{w: io.MultiWriter(f, packed)}
	if l.compression == None {
		if err := oci.WriteTar(ctx, out, files); err != nil {
			return err
		}
		l.digest, l.diff, l.size = hashOf(packed), hashOf(packed), out.n
		return nil
	}
	bare := sha256.New()
	z, err := l.compression.writer(out)
	if err != nil {
		return err
	}
	if err := errors.Join(oci.WriteTar(ctx, io.MultiWriter(z, bare), files), z.Close()); err != nil {
		return err
	}
	l.digest, l.diff, l.size = hashOf(packed), hashOf(bare), out.n
	return nil
}

func hashOf(h hash.Hash) v1.Hash {
	return v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(h.Sum(nil))}
}

type countingWriter struct {
	w io.Writer
	n int64
}

func (c *countingWriter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}
