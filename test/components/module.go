package components

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"time"

	"golang.org/x/mod/modfile"
)

// A program is one or more binaries built from a released Go module.
type program struct {
	module  string            // as go.etcd.io/etcd/server/v3
	version string            // as v3.6.8
	binary  map[string]string // package to the binary's file name
	staging string            // version of modules that are replaced by a directory
	tags    string
	ldflags string
	cgo     bool
	flags   []string // further flags of go build
}

// key is all that decides the binaries' content, beside Go itself.
func (p program) key() string {
	text, err := json.Marshal([]any{p.module, p.version, p.binary, p.staging, p.tags, p.ldflags, p.cgo, p.flags})
	if err != nil {
		panic(err) // strings cannot fail to marshal
	}
	return string(text)
}

// build writes the binaries into dir. It cannot be `go install module@version`:
// that refuses modules with replace directives. So it generates a module that
// has the same requirements, and builds the packages from there.
func (p program) build(ctx context.Context, dir string) error {
	src, err := os.MkdirTemp(dir, "src-")
	if err != nil {
		return err
	}
	if err := p.generate(ctx, src); err != nil {
		return err
	}
	out := filepath.Join(src, "out") + string(filepath.Separator)
	cgo := "CGO_ENABLED=0"
	if p.cgo {
		cgo = "CGO_ENABLED=1"
	}
	args := []string{"build", "-mod=mod", "-trimpath", "-buildvcs=false", "-ldflags", strings.TrimSpace("-s -w " + p.ldflags), "-o", out}
	if p.tags != "" {
		args = append(args, "-tags", p.tags)
	}
	args = append(args, p.flags...)
	for pkg := range p.binary {
		args = append(args, pkg)
	}
	if _, err := goTool(ctx, src, []string{cgo}, args...); err != nil {
		return err
	}
	for pkg, name := range p.binary {
		if err := os.Rename(filepath.Join(out, goName(pkg)), filepath.Join(dir, name)); err != nil {
			return err
		}
		if err := os.Chmod(filepath.Join(dir, name), 0o755); err != nil {
			return err
		}
	}
	return os.RemoveAll(src)
}

// generate writes the module's go.mod, and its go.sum as a start, into dir.
func (p program) generate(ctx context.Context, dir string) error {
	out, err := goTool(ctx, dir, []string{"GOFLAGS=-mod=mod"}, "mod", "download", "-json", p.module+"@"+p.version)
	var download struct{ GoMod, Dir, Error string }
	if jsonErr := json.Unmarshal(out, &download); jsonErr == nil && download.Error != "" {
		return errors.New(download.Error)
	} else if err = errors.Join(err, jsonErr); err != nil {
		return err
	}
	upstream, err := os.ReadFile(download.GoMod)
	if err != nil {
		return err
	}
	generated, err := p.goMod(upstream)
	if err != nil {
		return fmt.Errorf("go.mod of %s@%s: %w", p.module, p.version, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "go.mod"), generated, 0o644); err != nil {
		return err
	}
	sums, err := os.ReadFile(filepath.Join(download.Dir, "go.sum"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "go.sum"), sums, 0o644)
}

// goMod turns the upstream module's go.mod into one that requires that module:
// same Go version, requirements, replacements and exclusions. A replacement by a
// directory of its repository becomes the module's release p.staging if the
// requirement is the placeholder v0.0.0, and is dropped if it names a release.
func (p program) goMod(upstream []byte) ([]byte, error) {
	f, err := modfile.Parse("go.mod", upstream, nil)
	if err != nil {
		return nil, err
	}
	required := map[string]string{}
	for _, r := range f.Require {
		required[r.Mod.Path] = r.Mod.Version
	}
	if err := f.AddModuleStmt("node-upgrader.test/components"); err != nil {
		return nil, err
	}
	for _, tool := range f.Tool {
		if err := f.DropTool(tool.Path); err != nil {
			return nil, err
		}
	}
	f.DropToolchainStmt()
	for _, r := range f.Replace {
		if !modfile.IsDirectoryPath(r.New.Path) {
			continue
		}
		old := r.Old
		if err := f.DropReplace(old.Path, old.Version); err != nil {
			return nil, err
		}
		if required[old.Path] == "v0.0.0" && p.staging != "" {
			if err := f.AddReplace(old.Path, "", old.Path, p.staging); err != nil {
				return nil, err
			}
		}
	}
	if err := f.AddRequire(p.module, p.version); err != nil {
		return nil, err
	}
	f.Cleanup()
	return f.Format()
}

// goName is the file name that go build gives to a package's binary.
func goName(pkg string) string {
	if base := path.Base(pkg); !majorSuffix.MatchString(base) {
		return base
	}
	return path.Base(path.Dir(pkg))
}

var majorSuffix = regexp.MustCompile(`^v[0-9]+$`)

// goTool runs the go command with an environment in which only the settings of
// the machine's owner count, as GOPROXY, and none of a surrounding checkout.
// Its output is returned also when it fails.
func goTool(ctx context.Context, dir string, env []string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off", "GO111MODULE=on", "GOFLAGS=", "GOOS=linux", "GOARCH="+runtime.GOARCH)
	cmd.Env = append(cmd.Env, env...)
	// An interrupt lets go end its compilers; a kill would leave them running.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.Bytes(), fmt.Errorf("go %s: %w: %s", strings.Join(args, " "), err, tail(stderr.String()))
	}
	return stdout.Bytes(), nil
}

// tail is the end of a command's output, where go puts the error.
func tail(s string) string {
	const most = 2000
	s = strings.TrimSpace(s)
	if len(s) > most {
		s = "…" + s[len(s)-most:]
	}
	return s
}
