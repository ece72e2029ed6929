package components

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/node-upgrader/node-upgrader/test/cache"
	"github.com/node-upgrader/node-upgrader/test/debian"
)

// Built says where the components of a set are. All of it is in the cache:
// read it or copy it, never change it.
type Built struct {
	Set        Set
	Bin        string   // directory: kubeadm kubelet kubectl containerd containerd-shim-runc-v2 ctr runc
	CNI        string   // directory: the plugins
	Images     string   // directory: one OCI archive per image, for `ctr -n k8s.io images import`
	ImageNames []string // full references as `kubeadm config images list --kubernetes-version vX` prints them
}

// assembly is part of a set's key: raise it when what Build makes from the same
// parts changes.
const assembly = "1"

// Build returns a set's components, from the cache or built. Each part is
// announced on progress with its number and, when it is there, its time; what is
// in the cache is not mentioned. It can be interrupted at any moment and goes on
// with the part where it was. Building needs the go command, and root for the
// Debian packages that are missing on the machine.
func Build(ctx context.Context, s Set, progress io.Writer) (Built, error) {
	b, err := newBuilder(ctx, progress)
	if err != nil {
		return Built{}, fmt.Errorf("build components %s: %w", s.Name, err)
	}
	list := parts(s)
	b.of = len(list) + 1
	key := []string{fmt.Sprint(s), "assembly " + assembly}
	for _, p := range list {
		key = append(key, p.key)
	}
	dir, err := b.dir("set", strings.Join(key, "\n"), func(tmp string) error { return b.assemble(s, list, tmp) })
	if err != nil {
		return Built{}, fmt.Errorf("build components %s: %w", s.Name, err)
	}
	names, err := os.ReadFile(filepath.Join(dir, "image-names"))
	if err != nil {
		return Built{}, fmt.Errorf("build components %s: %w", s.Name, err)
	}
	return Built{
		Set:        s,
		Bin:        filepath.Join(dir, "bin"),
		CNI:        filepath.Join(dir, "cni"),
		Images:     filepath.Join(dir, "images"),
		ImageNames: strings.Fields(string(names)),
	}, nil
}

// WorkloadImage returns an archive of a small image, and the name that it gets
// by `ctr -n k8s.io images import`. Its program counts in a file in /data and
// answers over HTTP: see workload/main.go.
func WorkloadImage(ctx context.Context, progress io.Writer) (archive, ref string, err error) {
	const version = "v1"
	ref = "node-upgrader.test/workload:" + version
	b, err := newBuilder(ctx, progress)
	if err != nil {
		return "", "", fmt.Errorf("build the workload's image: %w", err)
	}
	b.of = 1
	dir, err := b.part(1, own("workload", version, workloadSource))
	if err == nil {
		dir, err = b.dir("workload-image", dir, func(tmp string) error {
			return image{
				ref:        ref,
				layers:     []layer{{fromFile("workload", filepath.Join(dir, "workload")), directory("data", 0o755)}},
				entrypoint: []string{"/workload"},
				labels:     map[string]string{"org.opencontainers.image.title": "workload", "org.opencontainers.image.version": version},
			}.writeArchive(filepath.Join(tmp, "workload.tar"))
		})
	}
	if err != nil {
		return "", "", fmt.Errorf("build the workload's image: %w", err)
	}
	return filepath.Join(dir, "workload.tar"), ref, nil
}

type builder struct {
	ctx      context.Context // of the one build
	progress io.Writer
	platform string // Go and the architecture: part of every key
	of       int    // how many parts there are
}

func newBuilder(ctx context.Context, progress io.Writer) (*builder, error) {
	version, err := goTool(ctx, "", nil, "env", "GOVERSION")
	if err != nil {
		return nil, err
	}
	return &builder{ctx: ctx, progress: progress, platform: strings.TrimSpace(string(version)) + " " + runtime.GOARCH}, nil
}

func (b *builder) dir(kind, key string, build func(tmp string) error) (string, error) {
	return cache.DirContext(b.ctx, kind, b.platform+"\n"+key, build)
}

// part returns the directory of the n-th part.
func (b *builder) part(n int, p part) (string, error) {
	kind := strings.Map(func(r rune) rune {
		if r == ' ' || r == '\'' {
			return '-'
		}
		return r
	}, p.name)
	return b.dir(kind, p.key, func(tmp string) error {
		if err := debian.Install(b.ctx, b.progress, p.needs...); err != nil {
			return err
		}
		return b.timed(n, p.name+" "+p.version, func() error { return p.build(b.ctx, tmp) })
	})
}

// timed runs build between the two halves of its line of progress.
func (b *builder) timed(n int, what string, build func() error) error {
	start := time.Now()
	_, _ = fmt.Fprintf(b.progress, "building %s (%d of %d) … ", what, n, b.of)
	if err := build(); err != nil {
		_, _ = fmt.Fprintln(b.progress)
		return fmt.Errorf("%s: %w", what, err)
	}
	_, _ = fmt.Fprintf(b.progress, "%.0f s\n", time.Since(start).Seconds())
	return nil
}

// assemble makes a set's directory from its parts.
func (b *builder) assemble(s Set, list []part, tmp string) error {
	bin := binaries{}
	dirs := map[string]string{}
	for i, p := range list {
		dir, err := b.part(i+1, p)
		if err != nil {
			return err
		}
		dirs[p.name] = dir
		entries, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		for _, e := range entries {
			bin[e.Name()] = filepath.Join(dir, e.Name())
		}
	}
	for _, name := range []string{"kubeadm", "kubelet", "kubectl", "containerd", "containerd-shim-runc-v2", "ctr", "runc"} {
		if err := link(bin[name], filepath.Join(tmp, "bin", name)); err != nil {
			return err
		}
	}
	plugins, err := os.ReadDir(dirs["CNI plugins"])
	if err != nil {
		return err
	}
	for _, e := range plugins {
		if err := link(bin[e.Name()], filepath.Join(tmp, "cni", e.Name())); err != nil {
			return err
		}
	}
	return b.timed(b.of, "images of Kubernetes "+s.Kubernetes, func() error {
		return b.images(s, bin, filepath.Join(dirs["kube-proxy's root"], "root"), tmp)
	})
}

func (b *builder) images(s Set, bin binaries, proxyRoot, tmp string) error {
	refs, err := imageList(b.ctx, bin["kubeadm"], s)
	if err != nil {
		return err
	}
	if err := os.Mkdir(filepath.Join(tmp, "images"), 0o755); err != nil {
		return err
	}
	for _, ref := range refs {
		im, err := imageFor(ref, bin, proxyRoot)
		if err != nil {
			return err
		}
		if err := im.writeArchive(filepath.Join(tmp, "images", archiveName(ref))); err != nil {
			return err
		}
		if err := b.ctx.Err(); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(tmp, "image-names"), []byte(strings.Join(refs, "\n")+"\n"), 0o644)
}

// link makes to a hard link of from: both are in the cache, on one file system
// and never changed.
func link(from, to string) error {
	if from == "" {
		return fmt.Errorf("%s: %w", filepath.Base(to), fs.ErrNotExist)
	}
	if err := os.Mkdir(filepath.Dir(to), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return os.Link(from, to)
}
