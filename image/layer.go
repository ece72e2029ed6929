package image

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sync/errgroup"
)

// fileLayer is a layer that lies ready in a file. go-containerregistry's own
// would be compressed anew each time it is asked for its digest or its bytes.
type fileLayer struct {
	what         string // for the image's history
	file         string
	digest, diff v1.Hash
	size         int64
	gzip         bool
}

func (l *fileLayer) Digest() (v1.Hash, error)           { return l.digest, nil }
func (l *fileLayer) DiffID() (v1.Hash, error)           { return l.diff, nil }
func (l *fileLayer) Size() (int64, error)               { return l.size, nil }
func (l *fileLayer) Compressed() (io.ReadCloser, error) { return os.Open(l.file) }

func (l *fileLayer) MediaType() (types.MediaType, error) {
	if l.gzip {
		return types.OCILayer, nil
	}
	return types.OCIUncompressedLayer, nil
}

func (l *fileLayer) Uncompressed() (io.ReadCloser, error) {
	f, err := os.Open(l.file)
	if err != nil || !l.gzip {
		return f, err
	}
	z, err := gzip.NewReader(f)
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return struct {
		io.Reader
		io.Closer
	}{z, f}, nil
}

// plan is a layer to be.
type plan struct {
	what    string
	entries []entry
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
			p.entries = append(p.entries, entry{
				"bundle/" + f.Path, int64(f.Mode), f.Size,
				func(ctx context.Context) (io.ReadCloser, error) {
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
	upgrader := entry{"upgrader", 0o755, exe.size(), func(ctx context.Context) (io.ReadCloser, error) {
		return io.NopCloser(&countingReader{ctx, io.NewSectionReader(exe.File, 0, exe.size()), count}), nil
	}}
	list := entry{"bundle/" + ManifestName, 0o644, int64(len(manifest)), func(context.Context) (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(manifest)), nil
	}}
	root := []entry{list}
	if sig := b.signature; sig != nil {
		root = append(root, entry{"bundle/" + SignatureName, 0o644, int64(len(sig)), func(context.Context) (io.ReadCloser, error) {
			return io.NopCloser(bytes.NewReader(sig)), nil
		}})
	}
	return append(all, plan{"upgrader", []entry{upgrader}}, plan{"manifest " + b.Digest, root})
}

type readCloser struct {
	io.Reader
	io.Closer
}

// writeLayers writes all layers into dir.
func writeLayers(ctx context.Context, o ArchiveOptions, exe *upgraderFile, dir string) ([]*fileLayer, error) {
	manifest, err := readManifest(o.Bundle.Dir)
	if err != nil {
		return nil, err
	}
	if digestOf(manifest) != o.Bundle.Digest {
		return nil, badFile(ManifestName, "changed since the bundle was opened")
	}
	count := newMeter(o.Bundle.Manifest.size()+exe.size(), o.Progress)
	all := plans(o.Bundle, exe, manifest, count)
	layers := make([]*fileLayer, len(all))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(workers())
	for i, p := range all {
		layers[i] = &fileLayer{what: p.what, file: filepath.Join(dir, fmt.Sprint("layer-", i)), gzip: o.Gzip}
		g.Go(func() error { return layers[i].write(ctx, p.entries) })
	}
	return layers, g.Wait()
}

func (l *fileLayer) write(ctx context.Context, entries []entry) (err error) {
	f, err := os.Create(l.file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	packed := sha256.New()
	out := &countingWriter{w: io.MultiWriter(f, packed)}
	if !l.gzip {
		if err := writeTar(ctx, out, entries); err != nil {
			return err
		}
		l.digest, l.diff, l.size = hashOf(packed), hashOf(packed), out.n
		return nil
	}
	bare := sha256.New()
	z := gzip.NewWriter(out)
	if err := writeTar(ctx, io.MultiWriter(z, bare), entries); err != nil {
		return err
	}
	if err := z.Close(); err != nil {
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
