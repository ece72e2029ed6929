package skeleton

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Tree is all files of a host by their paths, each told in one line.
type Tree map[string]string

// TreeOf reads a node's root but for what lives below the paths of except: the
// kernel's files, and what the upgrader keeps for itself. A file's time of
// change is told where it is not younger than since: who writes a file anew
// gives it another one.
func (n *Node) TreeOf(since time.Time, except ...string) (Tree, error) {
	t, names := Tree{}, map[uint64][]string{}
	except = append(except, "/proc")
	err := filepath.WalkDir(n.Root(), func(real string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		path := n.fs.HostPath(real)
		if slices.Contains(except, path) {
			return filepath.SkipDir
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		st := info.Sys().(*syscall.Stat_t) //nolint:forcetypeassert // Lstat on Linux
		line := fmt.Sprintf("%s %d:%d", info.Mode(), st.Uid, st.Gid)
		switch {
		case d.Type() == fs.ModeSymlink:
			to, err := os.Readlink(real)
			if err != nil {
				return err
			}
			line += " -> " + to
		case d.Type().IsRegular():
			text, err := os.ReadFile(real)
			if err != nil {
				return err
			}
			line += fmt.Sprintf(" %q", shorten(string(text)))
			if !info.ModTime().After(since) {
				line += " of " + info.ModTime().UTC().Format(time.RFC3339Nano)
			}
			names[st.Ino] = append(names[st.Ino], path)
		}
		attributes, err := attributesOf(real)
		if err != nil {
			return err
		}
		t[path] = line + attributes
		return nil
	})
	for _, same := range names {
		for _, path := range same {
			if len(same) > 1 {
				t[path] += " the same as " + strings.Join(same, " ")
			}
		}
	}
	return t, err
}

func shorten(text string) string {
	if len(text) > 512 {
		return "sha256 " + digest(text)
	}
	return text
}

func attributesOf(real string) (string, error) {
	buffer := make([]byte, 4096)
	size, err := unix.Llistxattr(real, buffer)
	if err != nil {
		return "", fmt.Errorf("attributes of %s: %w", real, err)
	}
	line := ""
	for _, name := range strings.Split(strings.TrimRight(string(buffer[:size]), "\x00"), "\x00") {
		if name == "" {
			continue
		}
		value := make([]byte, 4096)
		n, err := unix.Lgetxattr(real, name, value)
		if err != nil {
			return "", fmt.Errorf("attribute %s of %s: %w", name, real, err)
		}
		line += fmt.Sprintf(" %s=%q", name, value[:n])
	}
	return line, nil
}

// Diff are the paths at which two trees differ, with both lines; "" for none.
func (t Tree) Diff(other Tree) string {
	paths := map[string]bool{}
	for p := range t {
		paths[p] = true
	}
	for p := range other {
		paths[p] = true
	}
	var lines []string
	for p := range paths {
		a, b := t[p], other[p]
		if a != b {
			lines = append(lines, fmt.Sprintf("%s:\n\t- %s\n\t+ %s", p, orAbsent(a), orAbsent(b)))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func orAbsent(line string) string {
	if line == "" {
		return "absent"
	}
	return line
}

// Clone copies the node in one directory to another one, which is not there:
// content, owners, modes, times, attributes and links.
func Clone(from, to string) error {
	first := map[uint64]string{}
	type late struct {
		path string
		info fs.FileInfo
	}
	var dirs []late
	err := filepath.WalkDir(from, func(real string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		copied := to + strings.TrimPrefix(real, from)
		st := info.Sys().(*syscall.Stat_t) //nolint:forcetypeassert // Lstat on Linux
		switch {
		case d.IsDir():
			dirs = append(dirs, late{copied, info})
			return os.Mkdir(copied, 0o700)
		case d.Type() == fs.ModeSymlink:
			target, err := os.Readlink(real)
			if err != nil {
				return err
			}
			return os.Symlink(target, copied)
		case !d.Type().IsRegular():
			return fmt.Errorf("%s: what is that?", real)
		}
		if name, ok := first[st.Ino]; ok && st.Nlink > 1 {
			return os.Link(name, copied)
		}
		first[st.Ino] = copied
		data, err := os.ReadFile(real)
		if err != nil {
			return err
		}
		if err := os.WriteFile(copied, data, 0o600); err != nil {
			return err
		}
		return imitate(real, copied, info)
	})
	for _, d := range slices.Backward(dirs) {
		err = errors.Join(err, imitate(from+strings.TrimPrefix(d.path, to), d.path, d.info))
	}
	return err
}

// imitate gives a copy what its original has beside its content.
func imitate(real, copied string, info fs.FileInfo) error {
	st := info.Sys().(*syscall.Stat_t) //nolint:forcetypeassert // Lstat on Linux
	if os.Geteuid() == 0 {
		if err := os.Lchown(copied, int(st.Uid), int(st.Gid)); err != nil {
			return err
		}
	}
	buffer := make([]byte, 4096)
	size, err := unix.Llistxattr(real, buffer)
	if err != nil {
		return err
	}
	for _, name := range strings.Split(strings.TrimRight(string(buffer[:size]), "\x00"), "\x00") {
		if name == "" {
			continue
		}
		value := make([]byte, 4096)
		n, err := unix.Lgetxattr(real, name, value)
		if err == nil {
			err = unix.Lsetxattr(copied, name, value[:n], 0)
		}
		if err != nil {
			return err
		}
	}
	return errors.Join(os.Chmod(copied, info.Mode()), os.Chtimes(copied, info.ModTime(), info.ModTime()))
}
