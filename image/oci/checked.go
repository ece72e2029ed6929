package oci

import (
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"io"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// checked compares what is read with a descriptor. Instead of io.EOF it returns
// an *Error when it was not that.
type checked struct {
	io.ReadCloser
	desc v1.Descriptor
	hash hash.Hash
	n    int64
}

func newChecked(r io.ReadCloser, d v1.Descriptor) *checked {
	return &checked{ReadCloser: r, desc: d, hash: sha256.New()}
}

func (c *checked) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	c.hash.Write(p[:n])
	c.n += int64(n)
	if c.n > c.desc.Size {
		return 0, bad("blob %s has more than %d bytes", c.desc.Digest, c.desc.Size)
	}
	if err != io.EOF { //nolint:errorlint // io.Reader's contract
		return n, err
	}
	if c.n < c.desc.Size {
		return n, bad("blob %s has %d bytes instead of %d", c.desc.Digest, c.n, c.desc.Size)
	}
	if hex.EncodeToString(c.hash.Sum(nil)) != c.desc.Digest.Hex {
		return n, bad("blob %s was altered: its bytes have another digest", c.desc.Digest)
	}
	return n, io.EOF
}
