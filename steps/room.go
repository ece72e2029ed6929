package steps

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

// roomFor is a Block for everything that is known to make the installation of
// these files fail: a place that cannot be written, and a file system with too
// little room, in bytes or in inodes. The upgrader's own directory is one of
// these places. others are files, and with a slash at the end directories, that
// a program will write meanwhile.
func roomFor(env Env, files []placed, others ...string) ([]Block, error) {
	if len(files) == 0 && len(others) == 0 {
		return nil, nil
	}
	blocks, err := stateWritable(env)
	if err != nil {
		return nil, err
	}
	paths := others
	for _, f := range files {
		paths = append(paths, f.Dest)
	}
	more, err := writable(env, paths...)
	if err != nil {
		return nil, err
	}
	blocks = append(blocks, more...)
	var d disks
	if err := d.add(env, files, others); err != nil {
		return nil, err
	}
	return append(blocks, d.blocks()...), nil
}

// What a file system has to have beside the files themselves: for the journal,
// records and directories of the run, and for the small files that others write.
const (
	stateBytes, stateInodes = 1 << 20, 64
	placeBytes, placeInodes = 1 << 20, 4
)

// disk is a file system and what is asked of it.
type disk struct {
	dir           string // one that lies on it
	has           hostexec.Space
	names         []string
	bytes, inodes uint64
}

type disks []*disk

// on finds the file system of dir.
func (d *disks) on(env Env, dir string, bytes, inodes uint64) (*disk, error) {
	space, err := env.Host.FS.Free(dir)
	if err != nil {
		return nil, err
	}
	for _, known := range *d {
		if known.has.ID == space.ID {
			return known, nil
		}
	}
	one := &disk{dir: dir, has: space, bytes: bytes, inodes: inodes}
	*d = append(*d, one)
	return one, nil
}

// add asks for what an installation needs. What is installed lies beside what
// it replaces until it takes its name; and where the original cannot be kept by
// a link, the backup is a copy, and so is what puts it back.
func (d *disks) add(env Env, files []placed, others []string) error {
	host := env.Host.FS
	state, err := d.on(env, StateDir, stateBytes, stateInodes)
	if err != nil {
		return err
	}
	for _, f := range files {
		target, err := host.Target(f.Dest)
		if err != nil {
			return err
		}
		one, err := d.on(env, path.Dir(target), placeBytes, placeInodes)
		if err != nil {
			return err
		}
		if len(one.names) == 0 {
			one.dir = path.Dir(target)
		}
		one.names = append(one.names, f.Name())
		one.bytes += uint64(f.Size) //nolint:gosec // never negative
		one.inodes++
		if one == state {
			continue
		}
		old, err := host.Stat(f.Dest)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		size := uint64(old.Size()) //nolint:gosec // never negative
		for _, copied := range []*disk{one, state} {
			copied.bytes += size
			copied.inodes++
		}
	}
	for _, p := range others {
		if _, err := d.on(env, path.Dir(p), placeBytes, placeInodes); err != nil {
			return err
		}
	}
	return nil
}

func (d disks) blocks() []Block {
	var blocks []Block
	for _, one := range d {
		what := "installing " + strings.Join(one.names, ", ")
		if len(one.names) == 0 {
			what = "the upgrade"
		}
		if one.has.Bytes < one.bytes {
			blocks = append(blocks, Block{
				Reason: fmt.Sprintf("disk: %s has %d MiB free, %s needs %d MiB", one.dir, one.has.Bytes>>20, what, one.bytes>>20),
				Hint:   fmt.Sprintf("free %d MiB on the file system of %s", (one.bytes-one.has.Bytes)>>20+1, one.dir),
			})
		}
		if one.has.Inodes < one.inodes {
			blocks = append(blocks, Block{
				Reason: fmt.Sprintf("disk: %s has %d inodes free, %s needs %d", one.dir, one.has.Inodes, what, one.inodes),
				Hint:   fmt.Sprintf("remove files on the file system of %s (df -i %s)", one.dir, one.dir),
			})
		}
	}
	return blocks
}
