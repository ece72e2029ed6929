package upstream

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/node-upgrader/node-upgrader/image"
	"github.com/node-upgrader/node-upgrader/image/archive"
)

// layOut puts an artifact into a directory of components: a program as a link to
// the cache, an archive's files unpacked.
func layOut(ctx context.Context, dir string, p Pin, artifact string) error {
	bin, cni := filepath.Join(dir, "bin"), filepath.Join(dir, "cni")
	for _, d := range []string{bin, cni} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	switch p.Component {
	case image.Containerd:
		wanted := []string{"containerd", "containerd-shim-runc-v2", "ctr"}
		found, err := unpack(ctx, artifact, "bin", wanted, bin)
		if err != nil {
			return err
		}
		for _, name := range wanted {
			if !slices.Contains(found, name) {
				return fmt.Errorf("its archive does not have bin/%s", name)
			}
		}
		return nil
	case image.CNIPlugins:
		found, err := unpack(ctx, artifact, ".", image.Plugins(), cni)
		if err == nil && len(found) == 0 {
			err = errors.New("its archive has no plugin")
		}
		return err
	default:
		target, err := filepath.Abs(artifact)
		if err != nil {
			return err
		}
		return os.Symlink(target, filepath.Join(bin, p.Component))
	}
}

func unpack(ctx context.Context, artifact, from string, wanted []string, dir string) ([]string, error) {
	f, err := os.Open(artifact)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return archive.Extract(ctx, f, from, wanted, dir, archive.Default())
}
