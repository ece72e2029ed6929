package image

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// The three benchmarks move the same bytes: a bundle and an upgrader, 600 MB
// together, sized like the real ones. Compare them in turns:
//
//	go test -run '^$' -bench 'Cp|Stage|Restage' -benchtime 1x -count 10 ./image
//
// IMAGE_BENCH_DIR puts the trees on a disk of choice.
func benchTree(b *testing.B) (tree string, bundle *Bundle) {
	b.Helper()
	tree = benchDir(b)
	const mb = 1000 * 1000
	sizes := map[string]int64{
		"kubelet/kubelet": 110 * mb, "kubeadm/kubeadm": 100 * mb, "kubectl/kubectl": 95 * mb,
		"containerd/containerd": 80 * mb, "containerd/ctr": 45 * mb, "containerd/containerd-shim-runc-v2": 25 * mb,
		"runc/runc": 25 * mb,
	}
	fixture(b, filepath.Join(tree, stagedBundle), func(path string) int64 {
		if n, ok := sizes[path]; ok {
			return n
		}
		return 20 * mb
	})
	writeRandom(b, filepath.Join(tree, stagedUpgrader), 80*mb, 99)
	return tree, mustOpen(b, filepath.Join(tree, stagedBundle))
}

func benchDir(b *testing.B) string {
	b.Helper()
	base := os.Getenv("IMAGE_BENCH_DIR")
	if base == "" {
		return b.TempDir()
	}
	dir, err := os.MkdirTemp(base, "image-bench-") //nolint:usetesting // on the disk that was asked for
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// settle lets neither side pay for the other's dirty pages.
func settle(b *testing.B, remove string) {
	b.Helper()
	if err := os.RemoveAll(remove); err != nil {
		b.Fatal(err)
	}
	if err := exec.CommandContext(b.Context(), "sync").Run(); err != nil {
		b.Fatal(err)
	}
}

func benchStage(b *testing.B, o StageOptions, bundle *Bundle) Staged {
	b.Helper()
	s, err := Stage(context.Background(), bundle, o)
	if err != nil {
		b.Fatal(err)
	}
	return s
}

func BenchmarkCp(b *testing.B) {
	tree, bundle := benchTree(b)
	dest := filepath.Join(benchDir(b), "copy")
	b.SetBytes(bundle.Manifest.size())
	for b.Loop() {
		b.StopTimer()
		settle(b, dest)
		b.StartTimer()
		if err := exec.CommandContext(b.Context(), "cp", "-r", tree, dest).Run(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkStage(b *testing.B) {
	tree, bundle := benchTree(b)
	o := StageOptions{Store: filepath.Join(benchDir(b), "store"), Upgrader: filepath.Join(tree, stagedUpgrader), BootID: "bench"}
	b.SetBytes(bundle.Manifest.size())
	for b.Loop() {
		b.StopTimer()
		settle(b, o.Store)
		b.StartTimer()
		if s := benchStage(b, o, bundle); !s.Copied {
			b.Fatal("nothing was copied")
		}
	}
}

func BenchmarkRestage(b *testing.B) {
	tree, bundle := benchTree(b)
	o := StageOptions{Store: filepath.Join(benchDir(b), "store"), Upgrader: filepath.Join(tree, stagedUpgrader), BootID: "bench"}
	benchStage(b, o, bundle)
	b.SetBytes(bundle.Manifest.size())
	for b.Loop() {
		if s := benchStage(b, o, bundle); s.Copied {
			b.Fatal("it was copied again")
		}
	}
}

func BenchmarkVerify(b *testing.B) {
	_, bundle := benchTree(b)
	b.SetBytes(bundle.Manifest.size())
	for b.Loop() {
		if err := bundle.Verify(context.Background(), nil); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkSha256sum(b *testing.B) {
	_, bundle := benchTree(b)
	args := make([]string, 0, len(bundle.Manifest.Files))
	for _, f := range bundle.Manifest.Files {
		args = append(args, filepath.Join(bundle.Dir, f.Path))
	}
	b.SetBytes(bundle.Manifest.size())
	for b.Loop() {
		if err := exec.CommandContext(b.Context(), "sha256sum", args...).Run(); err != nil {
			b.Fatal(err)
		}
	}
}
