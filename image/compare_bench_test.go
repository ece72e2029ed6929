package image

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// BenchmarkCompare takes turns, so that whatever else the machine does falls on
// all alike, and reports medians and the ratios that have goals:
//
//	go test -run '^$' -bench Compare -benchtime 7x -timeout 30m ./image
//
//	stage_vs_cp           at most 1.0   Stage over cp -r of the same tree
//	stage_vs_cp_cold      at most 1.0   the same, the tree read from the disk
//	restage_ratio         at most 0.1   Stage again over Stage
//	verify_vs_sha256sum   at most 0.6   Verify over sha256sum of the same files
//	stage_peak_mib        small         the process' largest resident size in Stage
//	verify_peak_mib       at most 64    and in Verify
//
// Where the time goes: cp has the kernel copy on one core and hashes nothing.
// Stage copies and hashes on all cores. With a warm cache and a disk that does
// not make anybody wait, hashing alone takes two cores about as long as cp
// takes; beyond two cores, or when the disk is what is waited for, Stage wins.
//
// IMAGE_BENCH_DIR puts the trees on a disk of choice.
func BenchmarkCompare(b *testing.B) {
	tree, bundle := benchTree(b)
	dir := benchDir(b)
	o := StageOptions{Store: filepath.Join(dir, "store"), Upgrader: filepath.Join(tree, stagedUpgrader), BootID: "bench"}
	files := make([]string, 0, len(bundle.Manifest.Files))
	for _, f := range bundle.Manifest.Files {
		files = append(files, filepath.Join(bundle.Dir, f.Path))
	}
	took := map[string][]float64{}
	peak := map[string]float64{}
	timed := func(name string, what func()) {
		resetPeak(b)
		start := time.Now()
		what()
		took[name] = append(took[name], time.Since(start).Seconds())
		peak[name] = max(peak[name], peakMiB(b))
	}
	for b.Loop() {
		settle(b, filepath.Join(dir, "copy"))
		timed("cp", func() { run(b, "cp", "-r", tree, filepath.Join(dir, "copy")) })
		settle(b, filepath.Join(dir, "copy"))
		settle(b, o.Store)
		timed("stage", func() { benchStage(b, o, bundle) })
		timed("restage", func() { benchStage(b, o, bundle) })
		settle(b, filepath.Join(dir, "copy"))
		settle(b, o.Store)
		forget(b, tree)
		timed("cold_cp", func() { run(b, "cp", "-r", tree, filepath.Join(dir, "copy")) })
		settle(b, filepath.Join(dir, "copy"))
		forget(b, tree)
		timed("cold_stage", func() { benchStage(b, o, bundle) })
		settle(b, o.Store)
		timed("sha256sum", func() { run(b, "sha256sum", files...) })
		timed("verify", func() {
			if err := bundle.Verify(context.Background(), nil); err != nil {
				b.Fatal(err)
			}
		})
	}
	for name, seconds := range took {
		b.Logf("%-10s %.3f s of %.3f", name, median(seconds), seconds)
		b.ReportMetric(median(seconds), name+"_seconds")
	}
	b.ReportMetric(median(took["stage"])/median(took["cp"]), "stage_vs_cp")
	b.ReportMetric(median(took["cold_stage"])/median(took["cold_cp"]), "stage_vs_cp_cold")
	b.ReportMetric(slices.Min(took["stage"])/slices.Min(took["cp"]), "stage_vs_cp_best")
	b.ReportMetric(median(took["restage"])/median(took["stage"]), "restage_ratio")
	b.ReportMetric(median(took["verify"])/median(took["sha256sum"]), "verify_vs_sha256sum")
	b.ReportMetric(peak["stage"], "stage_peak_mib")
	b.ReportMetric(peak["verify"], "verify_peak_mib")
	b.ReportMetric(0, "ns/op")
}

// benchTree is a bundle and an upgrader, 600 MB together, sized like the real ones.
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

func benchStage(b *testing.B, o StageOptions, bundle *Bundle) {
	b.Helper()
	if _, err := Stage(context.Background(), bundle, o); err != nil {
		b.Fatal(err)
	}
}

// settle lets neither side pay for the other's dirty pages.
func settle(b *testing.B, remove string) {
	b.Helper()
	if err := os.RemoveAll(remove); err != nil {
		b.Fatal(err)
	}
	run(b, "sync")
}

// forget takes a tree out of the page cache.
func forget(b *testing.B, tree string) {
	b.Helper()
	err := filepath.WalkDir(tree, func(name string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		return unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
	})
	if err != nil {
		b.Fatal(err)
	}
}

func run(b *testing.B, name string, args ...string) {
	b.Helper()
	if err := exec.CommandContext(b.Context(), name, args...).Run(); err != nil {
		b.Fatal(err)
	}
}

func median(s []float64) float64 {
	s = slices.Sorted(slices.Values(s))
	return s[len(s)/2]
}

func resetPeak(b *testing.B) {
	b.Helper()
	if err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0); err != nil {
		b.Log("peak memory is that of all so far:", err)
	}
}

var highWater = regexp.MustCompile(`VmHWM:\s+(\d+) kB`)

func peakMiB(b *testing.B) float64 {
	b.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		b.Fatal(err)
	}
	m := highWater.FindSubmatch(status)
	if m == nil {
		b.Fatal("no VmHWM")
	}
	kib, err := strconv.ParseFloat(string(m[1]), 64)
	if err != nil {
		b.Fatal(err)
	}
	return kib / 1024
}
