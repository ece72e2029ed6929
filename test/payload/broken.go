package payload

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/node-upgrader/node-upgrader/test/components"
)

// Fault is how a broken program fails when systemd starts it as a service; to
// everybody else it is the real program. See test/broken.
type Fault string

// The faults.
const (
	Exits   Fault = "exit"  // ends at once with exit code 1
	Hangs   Fault = "hang"  // containerd's: says that it is ready, never answers, ignores SIGTERM
	Crashes Fault = "crash" // is the real program for two seconds
)

// Break writes a broken program in the place of a real one to the file out.
func Break(ctx context.Context, real string, fault Fault, out string) (err error) {
	root, err := output(ctx, "", "go", "env", "GOMOD")
	if err != nil {
		return err
	}
	if _, err := output(ctx, filepath.Dir(root), "go", "build", "-trimpath", "-ldflags=-s -w", "-o", out, "./test/broken"); err != nil {
		return err
	}
	f, err := os.OpenFile(out, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	program, err := os.Open(real)
	if err != nil {
		return err
	}
	defer program.Close()
	size, err := io.Copy(f, program)
	if err != nil {
		return err
	}
	_, err = f.Write(binary.LittleEndian.AppendUint64(fmt.Appendf(nil, "%-16s", fault), uint64(size)))
	return err
}

// Mixed makes a bundle of one set's components, but for those that are replaced:
// replaced maps a path such as bin/containerd or cni to a file or a directory.
// It is written to the directory dir, and its path and digest are returned in a
// payload that has no image.
func (p Payload) Mixed(ctx context.Context, base components.Built, replaced map[string]string, dir string) (Payload, error) {
	from := filepath.Join(dir, "components")
	if err := os.MkdirAll(filepath.Join(from, "bin"), 0o755); err != nil {
		return p, err
	}
	link := func(name, to string) error {
		if other := replaced[name]; other != "" {
			to = other
		}
		return os.Symlink(to, filepath.Join(from, name))
	}
	entries, err := os.ReadDir(base.Bin)
	if err != nil {
		return p, err
	}
	for _, e := range entries {
		name := filepath.Join("bin", e.Name())
		if err := link(name, filepath.Join(filepath.Dir(base.Bin), name)); err != nil {
			return p, err
		}
	}
	if err := link("cni", base.CNI); err != nil {
		return p, err
	}
	p.Target, p.Image, p.Ref, p.Bundle = base, "", "", filepath.Join(dir, "bundle")
	p.Digest, err = output(ctx, "", p.Upgrader, "bundle", "build", "--from", from, "--out", p.Bundle)
	return p, err
}
