package image

import (
	"fmt"
	"io"

	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// Compression is how an image's layers are compressed.
type Compression string

// The compressions. Zstd needs containerd 1.5 or Docker 23; it is the smallest,
// and the fastest to unpack. Gzip can be read by everything. None is for an
// archive that is imported on the same machine.
const (
	Zstd Compression = "zstd"
	Gzip Compression = "gzip"
	None Compression = "none"
)

// ParseCompression reads a Compression.
func ParseCompression(s string) (Compression, error) {
	switch c := Compression(s); c {
	case Zstd, Gzip, None:
		return c, nil
	default:
		return "", fmt.Errorf("compression %q: want zstd, gzip or none", s)
	}
}

func (c Compression) mediaType() types.MediaType {
	switch c {
	case Zstd:
		return types.OCILayerZStd
	case Gzip:
		return types.OCILayer
	default:
		return types.OCIUncompressedLayer
	}
}

// writer compresses into w. Its output depends on its input and on the version
// of the library in go.mod, not on Go's; it is one thread's work, as the layers
// are compressed side by side.
func (c Compression) writer(w io.Writer) (io.WriteCloser, error) {
	switch c {
	case Zstd:
		return zstd.NewWriter(w, zstd.WithEncoderConcurrency(1),
			zstd.WithEncoderLevel(zstd.SpeedBetterCompression),
			zstd.WithWindowSize(8<<20)) // what every decoder has to support
	case Gzip:
		return gzip.NewWriterLevel(w, gzip.DefaultCompression)
	default:
		return nopWriteCloser{w}, nil
	}
}

// reader is the way back.
func (c Compression) reader(r io.ReadCloser) (io.ReadCloser, error) {
	switch c {
	case Zstd:
		z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1))
		if err != nil {
			return nil, err
		}
		return readCloser{z, closer(func() error { z.Close(); return r.Close() })}, nil
	case Gzip:
		z, err := gzip.NewReader(r)
		if err != nil {
			return nil, err
		}
		return readCloser{z, r}, nil
	default:
		return r, nil
	}
}

type nopWriteCloser struct{ io.Writer }

func (nopWriteCloser) Close() error { return nil }

type closer func() error

func (c closer) Close() error { return c() }
