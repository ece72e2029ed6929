package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/node-upgrader/node-upgrader/test/figures"
	"github.com/node-upgrader/node-upgrader/test/payload"
)

// stage shows what package image's BenchmarkCompare finds: staging against cp,
// with a warm and a cold page cache, and verification against sha256sum; and how
// much memory the program itself takes to verify a bundle.
func stage(ctx context.Context) error {
	const turns = 7
	fmt.Printf("== staging 600 MB with verification, cp -r, and verification alone: %d times in turns\n", turns)
	root, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", "^BenchmarkCompare$", "-benchtime", fmt.Sprint(turns, "x"), "-timeout", "30m", "./image")
	cmd.Dir = filepath.Dir(strings.TrimSpace(string(root)))
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("benchmark of package image: %w\n%s", err, out)
	}
	m, err := metrics(string(out), "BenchmarkCompare")
	if err != nil {
		return err
	}
	peak, mib, err := verifyPeak(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("verify of a bundle of %.0f MiB: at most %.1f MiB of memory\n", mib, peak)
	return put(
		figures.Info("cp_seconds", m["cp_seconds"], "s"), figures.Info("stage_seconds", m["stage_seconds"], "s"),
		figures.AtMost("stage_vs_cp", m["stage_vs_cp"], "ratio", 1.0),
		figures.AtMost("stage_vs_cp_cold", m["stage_vs_cp_cold"], "ratio", 1.0),
		figures.AtMost("restage_ratio", m["restage_ratio"], "ratio", 0.1),
		figures.AtMost("verify_vs_sha256sum", m["verify_vs_sha256sum"], "ratio", 0.6),
		figures.AtMost("verify_peak_mib", max(peak, m["verify_peak_mib"]), "MiB", 64),
	)
}

// metrics are the values and units of a benchmark's line.
func metrics(out, benchmark string) (map[string]float64, error) {
	for line := range strings.Lines(out) {
		words := strings.Fields(line)
		if len(words) < 4 || !strings.HasPrefix(words[0], benchmark) {
			continue
		}
		found := map[string]float64{}
		for i := 2; i+1 < len(words); i += 2 { // after the name and the turns
			v, err := strconv.ParseFloat(words[i], 64)
			if err != nil {
				return nil, fmt.Errorf("%q: %w", line, err)
			}
			found[words[i+1]] = v
		}
		for _, unit := range []string{"stage_vs_cp", "stage_vs_cp_cold", "restage_ratio", "verify_vs_sha256sum", "verify_peak_mib"} {
			if found[unit] <= 0 {
				return nil, fmt.Errorf("no %s in %q", unit, line)
			}
		}
		return found, nil
	}
	return nil, fmt.Errorf("no %s in %q", benchmark, out)
}

// verifyPeak is the most memory that the program held while it verified a real
// bundle with the control plane's images, and that bundle's size, both in MiB.
func verifyPeak(ctx context.Context) (peak, size float64, err error) {
	dir, err := os.MkdirTemp("", "upgrader-bench-")
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	p, err := payload.Make(ctx, to, dir, os.Stdout)
	if err != nil {
		return 0, 0, err
	}
	bundle := filepath.Join(dir, "with-images")
	if err := tool(ctx, p.Upgrader, nil, "bundle", "build", "--from", filepath.Dir(p.Target.Bin),
		"--images", "--images-from", p.Target.Images, "--out", bundle); err != nil {
		return 0, 0, err
	}
	verify := exec.CommandContext(ctx, p.Upgrader, "bundle", "verify", bundle)
	if out, err := verify.CombinedOutput(); err != nil {
		return 0, 0, fmt.Errorf("verify: %w\n%s", err, out)
	}
	usage, ok := verify.ProcessState.SysUsage().(*syscall.Rusage)
	if !ok {
		return 0, 0, errors.New("no resource usage")
	}
	err = filepath.WalkDir(bundle, func(_ string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			var fi os.FileInfo
			fi, err = d.Info()
			if err == nil {
				size += float64(fi.Size()) / (1 << 20)
			}
		}
		return err
	})
	return float64(usage.Maxrss) / 1024, size, err // KiB on Linux
}
