package host

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// hierarchy is one mounted cgroup hierarchy of the machine.
type hierarchy struct {
	Mount       string   // where it is mounted
	Unified     bool     // cgroup v2
	Controllers []string // of v1: controllers, or one "name=…"
	Own         string   // directory of the calling process's cgroup
}

// hierarchies lists what is mounted, whether v1, v2 or both beside each other.
func hierarchies() ([]hierarchy, error) {
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	mounts, err := mountinfo.GetMounts(func(i *mountinfo.Info) (skip, stop bool) {
		return i.FSType != "cgroup" && i.FSType != "cgroup2", false
	})
	if err != nil {
		return nil, err
	}
	found := matchHierarchies(own, mounts)
	if len(found) == 0 {
		return nil, errors.New("no cgroup hierarchy is mounted below /sys/fs/cgroup")
	}
	return found, nil
}

// matchHierarchies joins /proc/self/cgroup, whose lines are
// "number:controllers:path", with the mounts.
func matchHierarchies(own []byte, mounts []*mountinfo.Info) []hierarchy {
	var found []hierarchy
	for scan := bufio.NewScanner(bytes.NewReader(own)); scan.Scan(); {
		parts := strings.SplitN(scan.Text(), ":", 3)
		if len(parts) != 3 {
			continue
		}
		for _, m := range mounts {
			h := hierarchy{Mount: m.Mountpoint, Unified: m.FSType == "cgroup2"}
			if h.Unified != (parts[1] == "" && parts[0] == "0") {
				continue
			}
			if !h.Unified {
				h.Controllers = strings.Split(parts[1], ",")
				options := strings.Split(m.VFSOptions, ",")
				if slices.ContainsFunc(h.Controllers, func(c string) bool { return !slices.Contains(options, c) }) {
					continue
				}
			}
			// The mount may show a part of the hierarchy only (in a
			// container without a cgroup namespace).
			rel, err := filepath.Rel(m.Root, parts[2])
			if err != nil || rel == ".." || strings.HasPrefix(rel, "../") {
				rel = "."
			}
			h.Own = filepath.Join(m.Mountpoint, rel)
			found = append(found, h)
			break
		}
	}
	return found
}

// pure tells whether v2 is all there is; v2 beside v1 has no controllers.
func pure(all []hierarchy) bool { return len(all) == 1 && all[0].Unified }

// makeCgroups makes the cgroup name below the caller's own in each hierarchy
// and returns the directories.
func makeCgroups(name string) ([]string, error) {
	all, err := hierarchies()
	if err != nil {
		return nil, err
	}
	var dirs []string
	for _, h := range all {
		parent := h.Own
		if pure(all) {
			if parent, err = delegating(h); err != nil {
				return nil, err
			}
		}
		dir := filepath.Join(parent, name)
		if err := makeCgroup(dir); err != nil {
			return nil, errors.Join(err, removeCgroups(dirs))
		}
		dirs = append(dirs, dir)
	}
	return dirs, nil
}

// makeCgroup makes one cgroup. A v1 cpuset starts empty and takes no process
// before it has its parent's CPUs and memory nodes.
func makeCgroup(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make cgroup: %w", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "cgroup.clone_children")); err != nil {
		return nil // v2
	}
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		value, err := os.ReadFile(filepath.Join(filepath.Dir(dir), file))
		if errors.Is(err, fs.ErrNotExist) {
			return nil // another controller's hierarchy
		}
		if err != nil {
			return fmt.Errorf("make cgroup: %w", err)
		}
		if err := os.WriteFile(filepath.Join(dir, file), value, 0); err != nil {
			return fmt.Errorf("make cgroup: %w", err)
		}
	}
	return os.WriteFile(filepath.Join(dir, "cgroup.clone_children"), []byte("1"), 0)
}

// delegating finds the nearest cgroup at or above the caller's own that hands
// its controllers down. One that holds processes itself cannot ("no internal
// processes"), except for the root.
func delegating(h hierarchy) (string, error) {
	for dir := h.Own; ; dir = filepath.Dir(dir) {
		data, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
		if err != nil {
			return "", err
		}
		for _, c := range strings.Fields(string(data)) {
			// One by one: what cannot be had is seen below.
			_ = os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+c), 0)
		}
		data, err = os.ReadFile(filepath.Join(dir, "cgroup.subtree_control"))
		if err != nil {
			return "", err
		}
		given := strings.Fields(string(data))
		if slices.Contains(given, "memory") && slices.Contains(given, "pids") && slices.Contains(given, "cpu") {
			return dir, nil
		}
		if dir == h.Mount {
			return "", fmt.Errorf("no cgroup from %s up to %s hands down cpu, memory and pids (run `systemd-run --scope -p Delegate=yes …`, or move the processes of %s into a child)", h.Own, dir, dir)
		}
	}
}

// joinCgroups moves the calling process into the directories.
func joinCgroups(dirs []string) error {
	for _, dir := range dirs {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0); err != nil {
			return fmt.Errorf("join cgroup: %w", err)
		}
	}
	return nil
}

// ownCgroups are the directories of the caller's cgroups, to come back to.
func ownCgroups() ([]string, error) {
	all, err := hierarchies()
	if err != nil {
		return nil, err
	}
	var dirs []string
	for _, h := range all {
		dirs = append(dirs, h.Own)
	}
	return dirs, nil
}

// removeCgroups removes the directories and all below. The kernel frees a
// cgroup a moment after its last process, so it tries for a while.
func removeCgroups(dirs []string) error {
	var errs []error
	for _, dir := range dirs {
		var err error
		for end := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			if err = removeCgroup(dir); err == nil || time.Now().After(end) {
				break
			}
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("remove cgroup: %w", err))
		}
	}
	return errors.Join(errs...)
}

func removeCgroup(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeCgroup(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	// Not os.Remove, which tries unlink first and reports its error.
	if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
		return &fs.PathError{Op: "rmdir", Path: dir, Err: err}
	}
	return nil
}

// UnifiedCgroups tells whether hosts on this machine have cgroup v2 alone, as
// against v1 or both.
func UnifiedCgroups() (bool, error) {
	all, err := hierarchies()
	return pure(all), err
}
