package steps

import (
	"fmt"
	"io/fs"
	"path"
	"strings"
	"syscall"

	"github.com/node-upgrader/node-upgrader/hostexec"
	"github.com/node-upgrader/node-upgrader/image/trust"
)

// maxLinks is how many links a path may lead through, as for the kernel.
const maxLinks = 40

// onlyRoots is a *trust.KeyError where somebody else than root owns or may write a
// file of the host, or a directory on the way to it, through all its links. Root
// is who owns the host's / too: in a user namespace that is another number.
func onlyRoots(files hostexec.FS, name string, owner func(fs.FileInfo) uint32) error {
	root, err := files.Lstat("/")
	if err != nil {
		return fmt.Errorf("look at the host's /: %w", err)
	}
	at, rest, links := "/", strings.Split(path.Clean(name), "/"), 0
	for len(rest) > 0 {
		next := path.Join(at, rest[0])
		if rest = rest[1:]; next == at || next == "/" {
			at = next
			continue
		}
		info, err := files.Lstat(next)
		if err != nil {
			return fmt.Errorf("look at the way to the key %s of the host: %w", name, err)
		}
		if uid := owner(info); uid != 0 && uid != owner(root) {
			return &trust.KeyError{
				Name: name, Reason: fmt.Sprintf("is not root's alone: %s belongs to the user %d", next, uid), Hint: "chown -h root " + next + " and see that it is what it should be",
			}
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			if at = next; info.Mode().Perm()&0o022 != 0 {
				return &trust.KeyError{Name: name, Reason: fmt.Sprintf("is not root's alone: %s may be written by others than its owner", next), Hint: "chmod go-w " + next}
			}
			continue
		}
		if links++; links > maxLinks {
			return &trust.KeyError{Name: name, Reason: "leads through too many links", Hint: "put the public key there as a file"}
		}
		text, err := files.Readlink(next)
		if err != nil {
			return fmt.Errorf("look at the way to the key %s of the host: %w", name, err)
		}
		if path.IsAbs(text) {
			at = "/"
		}
		rest = append(strings.Split(text, "/"), rest...)
	}
	return nil
}

// ownerOf is the user whose file it is.
func ownerOf(info fs.FileInfo) uint32 {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return s.Uid
	}
	return ^uint32(0) // nobody: what cannot be told is not root's
}
