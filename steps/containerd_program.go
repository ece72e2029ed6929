package steps

import (
	"errors"
	"fmt"
	"os"
	"path"
	"regexp"
	"strings"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

// containerdName is a program that may be replaced by containerd: itself, or
// with its version in the name.
var containerdName = regexp.MustCompile(`^containerd([-_.]?v?[0-9].*)?$`)

// isContainerd tells whether ExecStart starts containerd itself, and not a
// shell, env or a wrapper that starts it.
func (d containerdDaemon) isContainerd() bool {
	return containerdName.MatchString(path.Base(d.binary))
}

// otherPrograms are the reasons not to replace what is not what it seems: a
// wrapper that the unit starts, or a link to another project's program.
func otherPrograms(host hostexec.FS, d containerdDaemon, files []placed) ([]Block, error) {
	show := "systemctl cat " + containerdUnit
	if !d.isContainerd() {
		return []Block{{
			Reason: fmt.Sprintf("%s starts %s, which is not containerd and would be overwritten", containerdUnit, d.binary),
			Hint:   show + ": let ExecStart= start containerd itself",
		}}, nil
	}
	var blocks []Block
	running, err := runningProgram(host, d.unit.MainPID)
	if err != nil {
		return nil, err
	}
	if running != "" && running != d.binary {
		blocks = append(blocks, Block{
			Reason: fmt.Sprintf("%s starts %s, but what runs is %s", containerdUnit, d.binary, running),
			Hint:   show + "; when that is what it should start, systemctl restart " + containerdUnit,
		})
	}
	for _, f := range files {
		if f.Name() == "containerd" {
			continue
		}
		real, err := host.Resolve(f.Dest)
		if err != nil {
			return nil, err
		}
		target := host.HostPath(real)
		if target != f.Dest && !strings.HasPrefix(path.Base(target), f.Name()) {
			blocks = append(blocks, Block{
				Reason: fmt.Sprintf("%s is a link to %s, which is not %s and would be overwritten", f.Dest, target, f.Name()),
				Hint:   fmt.Sprintf("remove the link %s: the bundle's %s is put in its place, and %s stays as it is", f.Dest, f.Name(), target),
			})
		}
	}
	return blocks, nil
}

// runningProgram is the path of the program that a process runs, also when
// another file lies there now; "" when there is no such process.
func runningProgram(host hostexec.FS, pid int) (string, error) {
	if pid <= 0 {
		return "", nil
	}
	program, err := host.Program(pid)
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	return program, err
}
