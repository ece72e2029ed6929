package steps

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"
)

// roomFor is a Block for each file system that has too little room for the
// installation of these files. What is installed lies beside what it replaces
// until it takes its name; and where the original cannot be kept by a link, what
// puts it back is a copy.
func roomFor(env Env, files []placed) ([]Block, error) {
	host := env.Host.FS
	backups, err := host.Free(StateDir)
	if err != nil {
		return nil, err
	}
	type need struct {
		dir         string
		names       []string
		free, bytes uint64
	}
	var order []*need
	needs := map[[2]int32]*need{}
	for _, f := range files {
		real, err := host.Resolve(f.Dest)
		if err != nil {
			return nil, err
		}
		dir := path.Dir(host.HostPath(real))
		space, err := host.Free(dir)
		if err != nil {
			return nil, err
		}
		n := needs[space.ID]
		if n == nil {
			n = &need{dir: dir, free: space.Bytes, bytes: 1 << 20}
			needs[space.ID], order = n, append(order, n)
		}
		n.names = append(n.names, f.Name())
		n.bytes += uint64(f.Size) //nolint:gosec // never negative
		if space.ID == backups.ID {
			continue
		}
		old, err := host.Stat(f.Dest)
		switch {
		case err == nil:
			n.bytes += uint64(old.Size()) //nolint:gosec // never negative
		case !errors.Is(err, os.ErrNotExist):
			return nil, err
		}
	}
	var blocks []Block
	for _, n := range order {
		if n.free < n.bytes {
			blocks = append(blocks, Block{
				Reason: fmt.Sprintf("disk: %s has %d MiB free, installing %s needs %d MiB", n.dir, n.free>>20, strings.Join(n.names, ", "), n.bytes>>20),
				Hint:   fmt.Sprintf("free %d MiB on the file system of %s", (n.bytes-n.free)>>20+1, n.dir),
			})
		}
	}
	return blocks, nil
}
