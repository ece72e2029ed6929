package attach

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"

	"github.com/node-upgrader/node-upgrader/image/oci"
)

// packed is a tar of headers, whose files hold their names.
func packed(t testing.TB, headers ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len(h.Name))
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := io.WriteString(w, h.Name); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func gzipped(t testing.TB, data ...[]byte) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	for _, d := range data {
		if _, err := z.Write(d); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func zstandard(t testing.TB, window int, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	z := must[*zstd.Encoder](t)(zstd.NewWriter(&b, zstd.WithWindowSize(window)))
	if _, err := z.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func imageOf(t testing.TB, mediaType types.MediaType, layers ...[]byte) v1.Image {
	t.Helper()
	img := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	for _, l := range layers {
		img = must[v1.Image](t)(mutate.AppendLayers(img, static.NewLayer(l, mediaType)))
	}
	a := layoutOf(t, oci.Artifact{Tag: "v1", Manifest: img})
	found := must[oci.Artifact](t)(a.Find("v1"))
	return found.Manifest.(v1.Image) //nolint:forcetypeassert // it was one
}

func regular(name string) tar.Header {
	return tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644}
}

func TestContents(t *testing.T) {
	one := packed(t, tar.Header{Typeflag: tar.TypeDir, Name: "bundle/", Mode: 0o755}, regular("bundle/one"))
	two := packed(t, regular("./two"))
	sum := func(s string) string { h := sha256.Sum256([]byte(s)); return hex.EncodeToString(h[:]) }
	want := map[string]string{"./bundle/one": sum("bundle/one"), "./two": sum("./two")}
	for mediaType, layers := range map[types.MediaType][][]byte{
		types.OCIUncompressedLayer: {one, two},
		types.OCILayer:             {gzipped(t, one), gzipped(t, two)},
		types.OCILayerZStd:         {zstandard(t, 1<<20, one), zstandard(t, 1<<20, two)},
	} {
		got, err := Contents(t.Context(), imageOf(t, mediaType, layers...))
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s: %v\n%s", mediaType, err, diff)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Contents(ctx, imageOf(t, types.OCIUncompressedLayer, one)); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestBadLayers(t *testing.T) {
	zeroes := make([]byte, 1<<20)
	bomb := [][]byte{}
	for range 400 {
		bomb = append(bomb, zeroes)
	}
	good := packed(t, regular("one"))
	tests := []struct {
		name, want string
		mediaType  types.MediaType
		layer      []byte
	}{
		{"a zip bomb", "unpacks to more than 200 times", types.OCILayer, gzipped(t, bomb...)},
		{"a zstd bomb", "unpacks to more than 200 times", types.OCILayerZStd, zstandard(t, 1<<20, bytes.Repeat(zeroes, 400))},
		{"a bomb behind a tar", "unpacks to more than 200 times", types.OCILayer, gzipped(t, append([][]byte{packed(t, regular("x"))}, bomb...)...)},
		{"a sparse file of a petabyte", "unpacks to more than 200 times", types.OCIUncompressedLayer, gnuSparse(1 << 50)},
		{"a wide window", "cannot be unpacked", types.OCILayerZStd, wideWindow()},
		{"a link", "neither a file nor a directory", types.OCIUncompressedLayer, packed(t, tar.Header{Typeflag: tar.TypeSymlink, Name: "x", Linkname: "/etc"})},
		{"a hard link", "neither a file nor a directory", types.OCIUncompressedLayer, packed(t, tar.Header{Typeflag: tar.TypeLink, Name: "x", Linkname: "y"})},
		{"a device", "neither a file nor a directory", types.OCIUncompressedLayer, packed(t, tar.Header{Typeflag: tar.TypeChar, Name: "x"})},
		{"a path that climbs", "no path of a file", types.OCIUncompressedLayer, packed(t, regular("a/../../x"))},
		{"an absolute path", "no path of a file", types.OCIUncompressedLayer, packed(t, regular("/x"))},
		{"a whiteout", "no path of a file", types.OCIUncompressedLayer, packed(t, regular("bundle/.wh.kubelet"))},
		{"twice", "in the image twice", types.OCIUncompressedLayer, packed(t, regular("x"), regular("x"))},
		{"no tar", "cannot be unpacked", types.OCIUncompressedLayer, bytes.Repeat([]byte("x"), 1024)},
		{"cut", "cannot be unpacked", types.OCIUncompressedLayer, good[:514]},
		{"no gzip", "no gzip", types.OCILayer, good},
		{"no zstd", "cannot be unpacked", types.OCILayerZStd, good},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := Contents(t.Context(), imageOf(t, test.mediaType, test.layer))
			var bad *oci.Error
			if !errors.As(err, &bad) || !strings.Contains(err.Error(), test.want) || bad.Hint == "" {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

// wideWindow is a zstd frame that asks for a window of a terabyte.
func wideWindow() []byte {
	return append([]byte{0x28, 0xb5, 0x2f, 0xfd, 0x00, 30 << 3}, 0x01, 0, 0)
}

// gnuSparse is a tar with an old GNU sparse file, all hole.
func gnuSparse(size int64) []byte {
	h := make([]byte, 512)
	copy(h, "sparse")
	copy(h[100:], "0000644\x00")
	copy(h[124:], "00000000000\x00") // nothing of it is stored
	h[156] = 'S'
	copy(h[257:], "ustar  \x00")
	// The real size, in base 256; the one map entry is empty, at the end.
	number := func(at int) {
		h[at] = 0x80
		for i := range 8 {
			h[at+11-i] = byte(size >> (8 * i))
		}
	}
	number(386)
	copy(h[398:], "00000000000\x00")
	number(483)
	for i := range 8 {
		h[148+i] = ' '
	}
	sum := 0
	for _, b := range h {
		sum += int(b)
	}
	copy(h[148:], fmt.Sprintf("%06o\x00 ", sum))
	return append(h, make([]byte, 1024)...)
}

// FuzzContents: no layer takes more than its share, and none gets a path out.
func FuzzContents(f *testing.F) {
	f.Add(packed(f, regular("bundle/one"), regular("two")))
	f.Add(packed(f, tar.Header{Typeflag: tar.TypeSymlink, Name: "x", Linkname: "/etc"}))
	f.Add(gnuSparse(1 << 50))
	f.Add(gnuSparse(100))
	f.Fuzz(func(t *testing.T, data []byte) {
		files := map[string]string{}
		l := &limited{t.Context(), bytes.NewReader(data), 1 << 20, bad("too much")}
		var own *oci.Error
		if err := readTar(t.Context(), l, files); err != nil && !errors.As(err, &own) {
			t.Fatalf("%T is not an oci.Error", err)
		}
		for name := range files {
			if !strings.HasPrefix(name, "./") || strings.Contains("/"+name+"/", "/../") {
				t.Fatalf("took %q", name)
			}
		}
	})
}
