package host

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// disk is a directory with what one host has written:
//
//	disk.json  what it lies on, and whose it is
//	upper/     the overlay's changes to /
//	work/      the overlay's own
//	var/       /var
//	root/      where the host mounts its / (inside its namespace only)
type disk struct {
	dir string
	diskInfo
}

type diskInfo struct {
	Layers []string `json:"layers"` // read-only directories, the top one first
	Name   string   `json:"name"`
	IP     string   `json:"ip"`
}

func (d disk) path(name string) string { return filepath.Join(d.dir, name) }

// newDisk makes a disk on layers, the last of which is a Base.
func newDisk(dir string, info diskInfo) (disk, error) {
	d := disk{dir: dir, diskInfo: info}
	for _, layer := range info.Layers {
		if strings.ContainsAny(layer, ":,\\") {
			return d, fmt.Errorf("layer %s: an overlay cannot have ':', ',' or '\\' in a path", layer)
		}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return d, err
	}
	for _, name := range []string{"upper", "work", "root"} {
		if err := os.Mkdir(d.path(name), 0o755); err != nil {
			return d, err
		}
	}
	base := info.Layers[len(info.Layers)-1]
	if err := copyTree(d.path("var"), filepath.Join(base, "var"), nil); err != nil {
		return d, err
	}
	if err := d.identify(); err != nil {
		return d, err
	}
	return d, d.save()
}

// openDisk makes a disk from a snapshot.
func openDisk(dir, snapshot string) (disk, error) {
	d := disk{dir: dir}
	data, err := os.ReadFile(filepath.Join(snapshot, "disk.json"))
	if err != nil {
		return d, fmt.Errorf("not a snapshot: %w", err)
	}
	if err := json.Unmarshal(data, &d.diskInfo); err != nil {
		return d, fmt.Errorf("%s: %w", snapshot, err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return d, err
	}
	for _, name := range []string{"work", "root"} {
		if err := os.Mkdir(d.path(name), 0o755); err != nil {
			return d, err
		}
	}
	return d, copyDisk(dir, snapshot)
}

func (d disk) save() error {
	data, err := json.MarshalIndent(d.diskInfo, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(d.path("disk.json"), data, 0o644)
}

// identify gives the disk its host's name and address.
func (d disk) identify() error {
	id, err := os.ReadFile("/proc/sys/kernel/random/uuid")
	if err != nil {
		return err
	}
	files := map[string]string{
		"hostname":    d.Name + "\n",
		"hosts":       fmt.Sprintf("127.0.0.1 localhost\n%s %s\n", d.IP, d.Name),
		"resolv.conf": "nameserver " + Gateway + "\n",
		"machine-id":  strings.ReplaceAll(string(id), "-", ""),
	}
	etc := d.path("upper/etc")
	if err := os.Mkdir(etc, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	for name, text := range files {
		// A link of the layer below (Debian's resolv.conf may be one) is
		// covered, not followed.
		if err := os.WriteFile(filepath.Join(etc, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// snapshot copies the disk of a host that is off.
func (d disk) snapshot(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	if err := copyDisk(dir, d.dir); err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	return nil
}

func copyDisk(dst, src string) error {
	if err := copyTree(filepath.Join(dst, "upper"), filepath.Join(src, "upper"), nil); err != nil {
		return err
	}
	if err := copyTree(filepath.Join(dst, "var"), filepath.Join(src, "var"), immutable); err != nil {
		return err
	}
	data, err := os.ReadFile(filepath.Join(src, "disk.json"))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dst, "disk.json"), data, 0o644)
}

// Smaller files are copied: a link costs about as much.
const shareFrom = 64 << 10

// immutable approves of large files that no program writes to again, so that
// copies of a disk share them: containerd's blobs, and the files of snapshots
// that are image layers. A container's own, writable snapshot is known by its
// overlay work directory, which the kernel fills when it is mounted; a layer
// that was unpacked on top of another has one too and is copied, to be safe.
func immutable(path string, st *unix.Stat_t) bool {
	const (
		blobs     = "/io.containerd.content.v1.content/blobs/"
		snapshots = "/io.containerd.snapshotter.v1.overlayfs/snapshots/"
	)
	if st.Size < shareFrom {
		return false
	}
	if strings.Contains(path, blobs) {
		return true
	}
	before, after, ok := strings.Cut(path, snapshots)
	if !ok {
		return false
	}
	number, rest, ok := strings.Cut(after, "/")
	if !ok || !strings.HasPrefix(rest, "fs/") {
		return false
	}
	entries, err := os.ReadDir(before + snapshots + number + "/work")
	return errors.Is(err, fs.ErrNotExist) || err == nil && len(entries) == 0
}
