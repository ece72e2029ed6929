package components

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
)

// Registry returns the program of an image registry, the CNCF's distribution,
// from the cache or built.
func Registry(ctx context.Context, progress io.Writer) (string, error) {
	const (
		module  = "github.com/distribution/distribution/v3"
		version = "3.1.2"
	)
	b, err := newBuilder(ctx, progress)
	if err != nil {
		return "", fmt.Errorf("build the registry: %w", err)
	}
	b.of = 1
	dir, err := b.part(1, goPart("registry", version, program{
		module: module, version: "v" + version,
		binary: map[string]string{module + "/cmd/registry": "registry"},
	}))
	if err != nil {
		return "", fmt.Errorf("build the registry: %w", err)
	}
	return filepath.Join(dir, "registry"), nil
}
