package attach

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"

	"github.com/node-upgrader/node-upgrader/image/oci"
)

// A layer may unpack to so many times its size: programs compress to a quarter.
// maxFiles bounds the number of an image's files.
const (
	maxRatio = 200
	slack    = 1 << 20
	maxFiles = 100_000
)

const hintImage = "the image was altered or is none of the upgrader's: fetch or build it again"

func bad(format string, args ...any) error {
	return &oci.Error{Err: fmt.Errorf(format, args...), Hint: hintImage}
}

// Contents are the files of an image, as "./bundle/bundle.json", with their
// sha256. Nothing is unpacked to a disk, and memory does not grow with the
// layers. The upgrader's image has directories and regular files, each once: a
// link, a whiteout or a device, a path that climbs, and a layer that unpacks to
// more than 200 times its size are an *oci.Error.
func Contents(ctx context.Context, img v1.Image) (map[string]string, error) {
	files := map[string]string{}
	layers, err := img.Layers()
	if err != nil {
		return nil, fmt.Errorf("read image: %w", err)
	}
	for _, l := range layers {
		if err := readLayer(ctx, l, files); err != nil {
			return nil, fmt.Errorf("read image: %w", err)
		}
	}
	return files, nil
}

func readLayer(ctx context.Context, l v1.Layer, files map[string]string) error {
	digest, err := l.Digest()
	if err != nil {
		return err
	}
	size, err := l.Size()
	if err != nil {
		return err
	}
	packed, err := l.Compressed()
	if err != nil {
		return err
	}
	defer packed.Close()
	mediaType, err := l.MediaType()
	if err != nil {
		return err
	}
	r, err := unpack(packed, mediaType)
	if err != nil {
		return err
	}
	defer r.Close()
	most := size*maxRatio + slack
	bomb := bad("layer %s unpacks to more than %d times its size", digest, maxRatio)
	return readTar(ctx, &limited{ctx, r, most, bomb}, files)
}

// maxWindow is the most memory that a zstd layer may ask for; zstd itself takes
// no more without being told.
const maxWindow = 128 << 20

func unpack(r io.Reader, mediaType types.MediaType) (io.ReadCloser, error) {
	switch {
	case strings.HasSuffix(string(mediaType), "+zstd"):
		z, err := zstd.NewReader(r, zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderConcurrency(1))
		if err != nil {
			return nil, bad("a layer is no zstd: %v", err)
		}
		return z.IOReadCloser(), nil
	case strings.HasSuffix(string(mediaType), "gzip"):
		z, err := gzip.NewReader(r)
		if err != nil {
			return nil, bad("a layer is no gzip: %v", err)
		}
		return z, nil
	}
	return io.NopCloser(r), nil
}

func readTar(ctx context.Context, r *limited, files map[string]string) error {
	// A sparse file is longer than what is read of it.
	left := r.left
	for t := tar.NewReader(r); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			// What follows the end of the tar is compared with the digest too.
			_, err = io.Copy(io.Discard, r)
			return ours(ctx, err)
		}
		if err != nil {
			return ours(ctx, err)
		}
		name := "./" + strings.TrimPrefix(h.Name, "./")
		left -= h.Size
		switch {
		case left < 0:
			return r.bomb
		case !filepath.IsLocal(h.Name) || strings.HasPrefix(path.Base(h.Name), ".wh."):
			return bad("%q is no path of a file in the image", h.Name)
		case h.Typeflag == tar.TypeDir:
			continue
		case h.Typeflag != tar.TypeReg:
			return bad("%q is neither a file nor a directory", h.Name)
		case files[name] != "":
			return bad("%q is in the image twice", h.Name)
		case len(files) == maxFiles:
			return bad("the image has more than %d files", maxFiles)
		}
		sum := sha256.New()
		if _, err := io.CopyBuffer(struct{ io.Writer }{sum}, t, make([]byte, 128<<10)); err != nil {
			return ours(ctx, err)
		}
		files[name] = hex.EncodeToString(sum.Sum(nil))
	}
}

// ours makes what the unpackers say of a damaged layer an *oci.Error.
func ours(ctx context.Context, err error) error {
	var own *oci.Error
	if err == nil || errors.As(err, &own) || ctx.Err() != nil {
		return err
	}
	return bad("a layer cannot be unpacked: %v", err)
}

// limited gives up after so many bytes, or when ctx does.
type limited struct {
	ctx  context.Context
	r    io.Reader
	left int64
	bomb error
}

func (l *limited) Read(p []byte) (int, error) {
	if err := l.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := l.r.Read(p)
	if l.left -= int64(n); l.left < 0 {
		return 0, l.bomb
	}
	return n, err
}
