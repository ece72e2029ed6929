//go:build e2e_upstream

package upstream

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/mod/modfile"

	"github.com/node-upgrader/node-upgrader/test/cache"
	"github.com/node-upgrader/node-upgrader/test/debian"
)

const (
	criTools        = "sigs.k8s.io/cri-tools"
	criToolsVersion = "v1.36.0"
)

// buildCritest builds critest, which is the test binary of a package, from its
// module into the cache, and returns its path.
func buildCritest(ctx context.Context, progress io.Writer) (string, error) {
	key := strings.Join([]string{criTools, criToolsVersion, runtime.Version(), runtime.GOARCH, "1"}, "\n")
	dir, err := cache.DirContext(ctx, "critest", key, func(tmp string) error {
		start := time.Now()
		_, _ = fmt.Fprintf(progress, "building critest %s …", criToolsVersion)
		src := filepath.Join(tmp, "src")
		if err := os.Mkdir(src, 0o755); err != nil {
			return err
		}
		if err := module(ctx, src); err != nil {
			return err
		}
		_, err := goTool(ctx, src, "test", "-c", "-mod=mod", "-trimpath",
			"-ldflags", "-s -w -X "+criTools+"/pkg/version.Version="+criToolsVersion,
			"-o", filepath.Join(tmp, "critest"), criTools+"/cmd/critest")
		if err != nil {
			return err
		}
		_, _ = fmt.Fprintf(progress, "critest built (%.0f s)", time.Since(start).Seconds())
		return os.RemoveAll(src)
	})
	return filepath.Join(dir, "critest"), err
}

// module writes a go.mod that has critest's requirements and itself, as
// `go test -c module@version` does not exist.
func module(ctx context.Context, dir string) error {
	out, err := goTool(ctx, dir, "mod", "download", "-json", criTools+"@"+criToolsVersion)
	if err != nil {
		return err
	}
	var download struct{ GoMod, Dir string }
	if err := json.Unmarshal(out, &download); err != nil {
		return err
	}
	text, err := os.ReadFile(download.GoMod)
	if err != nil {
		return err
	}
	mod, err := modfile.Parse("go.mod", text, nil)
	if err != nil {
		return err
	}
	if err := errors.Join(mod.AddModuleStmt("node-upgrader.test/critest"), mod.AddRequire(criTools, criToolsVersion)); err != nil {
		return err
	}
	if text, err = mod.Format(); err != nil {
		return err
	}
	sums, err := os.ReadFile(filepath.Join(download.Dir, "go.sum"))
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(filepath.Join(dir, "go.mod"), text, 0o644),
		os.WriteFile(filepath.Join(dir, "go.sum"), sums, 0o644))
}

// buildStandin builds the program in standin from this checkout into dir.
func buildStandin(ctx context.Context, dir string) (string, error) {
	file := filepath.Join(dir, "standin")
	_, err := goTool(ctx, "", "build", "-trimpath", "-ldflags", "-s -w", "-o", file, "./standin")
	return file, err
}

// busyboxRoot is a root file system with Debian's busybox and its libraries. It
// is not busybox-static's, whose shell runs its own applets instead of what is
// in /bin: critest looks whether it can still run what is masked there.
func busyboxRoot(ctx context.Context, progress io.Writer) (string, error) {
	dir, err := cache.DirContext(ctx, "critest-busybox", runtime.GOARCH+" 1", func(tmp string) error {
		_, _ = fmt.Fprint(progress, "fetching Debian's busybox")
		debs, err := debian.FetchClosure(ctx, tmp, "busybox")
		if err != nil {
			return err
		}
		if err := debian.Unpack(ctx, filepath.Join(tmp, "root"), debs...); err != nil {
			return err
		}
		return os.RemoveAll(filepath.Dir(debs[0]))
	})
	return filepath.Join(dir, "root"), err
}

func goTool(ctx context.Context, dir string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "nice", append([]string{"go"}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOOS=linux", "GOFLAGS=")
	if dir != "" {
		cmd.Env = append(cmd.Env, "GOFLAGS=-mod=mod")
	}
	// An interrupt lets go end its compilers; a kill would leave them running.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, stderr.String())
	}
	return out, nil
}
