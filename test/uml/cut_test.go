//go:build e2e

package uml

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/node-upgrader/node-upgrader/image"
	"github.com/node-upgrader/node-upgrader/steps"
	"github.com/node-upgrader/node-upgrader/test/cluster"
	"github.com/node-upgrader/node-upgrader/test/figures"
	"github.com/node-upgrader/node-upgrader/test/host"
)

// seedVariable repeats a run: the seed that it printed.
const seedVariable = "POWER_CUT_SEED"

const powerCuts = 10

// Where the node has what it is upgraded with.
const (
	nodeDriver   = "/root/driver"
	nodeUpgrader = "/root/upgrader"
	nodeBundle   = "/root/bundle"
)

// services are the files that change together.
func services() map[string][]string {
	return map[string][]string{
		"containerd": {"/usr/local/bin/containerd", "/usr/local/bin/containerd-shim-runc-v2", "/usr/local/bin/ctr", "/usr/local/sbin/runc"},
		"kubelet":    {"/usr/bin/kubelet", "/usr/bin/kubectl"},
	}
}

// The power is cut at random moments of the steps that change a node's own
// files. After each cut the node boots with each service's files all old or all
// new, and running; in the end every upgrade that was cut is complete.
func TestPowerCutsOfAnUpgrade(t *testing.T) {
	seed := rand.Uint64()
	if text := os.Getenv(seedVariable); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		must(t, err)
	}
	t.Logf("%s=%d", seedVariable, seed)
	c := &cuts{t: t, rand: rand.New(rand.NewPCG(seed, 0))} //nolint:gosec // it is to be repeated
	c.prepare()
	for c.done < powerCuts && !t.Failed() {
		c.upgrade()
	}
	must(t, figures.Put("e2e",
		figures.AtLeast("power_cuts", float64(c.done), "cuts", 10),
		figures.AtLeast("power_cuts_recovered", float64(c.recovered), "cuts", float64(c.done))))
	t.Logf("power_cuts %d, power_cuts_recovered %d", c.done, c.recovered)
	if c.done < powerCuts || c.recovered != c.done {
		t.Errorf("%d of %d cuts recovered", c.recovered, c.done)
	}
}

// cuts is the test's state.
type cuts struct {
	t        *testing.T
	rand     *rand.Rand
	node     string // snapshot of a node at the old version
	bundle   *image.Bundle
	old, new map[string]string // digests by path on the node
	moments  map[string]int    // of each step, undisturbed

	done, recovered int
}

// prepare makes the node and runs the upgrade once without a cut.
func (c *cuts) prepare() {
	t, dir := c.t, c.t.TempDir()
	from, err := cluster.NewStandalone(t.Context(), "1.35", os.Stderr)
	must(t, err)
	to, err := cluster.NewStandalone(t.Context(), "1.36", os.Stderr)
	must(t, err)
	layer, err := from.Layer(t.Context())
	must(t, err)
	disk, err := Image(t.Context(), os.Stderr, layer)
	must(t, err)

	oldDir, newDir := filepath.Join(dir, "old"), filepath.Join(dir, "new")
	for version, bin := range map[string]string{from.Components().Set.Kubernetes: oldDir, to.Components().Set.Kubernetes: newDir + "/bin"} {
		for _, name := range []string{"kubelet", "kubeadm", "kubectl"} {
			build(t, filepath.Join(bin, name), "./test/uml/standin", "-X main.version=v"+version)
		}
	}
	for _, name := range []string{"containerd", "containerd-shim-runc-v2", "ctr", "runc"} {
		must(t, os.Symlink(filepath.Join(to.Components().Bin, name), filepath.Join(newDir, "bin", name)))
	}
	must(t, os.Symlink(to.Components().CNI, filepath.Join(newDir, "cni")))
	c.bundle, err = image.Build(t.Context(), image.BuildOptions{From: newDir, Out: filepath.Join(dir, "bundle")})
	must(t, err)
	build(t, filepath.Join(dir, "driver"), "./test/uml/driver", "")
	build(t, filepath.Join(dir, "upgrader"), "./cmd/upgrader", "")

	m := on(t, Spec{Name: "node", IP: "10.89.0.11", Image: disk})
	for from, to := range map[string]string{
		filepath.Join(oldDir, "kubelet"): "/usr/bin/kubelet", filepath.Join(oldDir, "kubeadm"): "/usr/bin/kubeadm", filepath.Join(oldDir, "kubectl"): "/usr/bin/kubectl",
		filepath.Join(dir, "driver"): nodeDriver, filepath.Join(dir, "upgrader"): nodeUpgrader, filepath.Join(dir, "bundle"): nodeBundle,
	} {
		must(t, m.CopyIn(from, to))
	}
	must(t, m.WriteFile("/var/lib/kubelet/config.yaml", []byte("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"), 0o644))
	sh(t, m, "systemctl enable --now kubelet")
	c.old = c.digests(m)
	must(t, m.PowerOff(t.Context()))
	c.node = filepath.Join(dir, "node")
	must(t, m.Snapshot(c.node))

	boot(t, m)
	start := time.Now()
	c.moments = map[string]int{}
	c.drive(m, func(line string) {
		if f := strings.Fields(line); f[0] == "end" {
			c.moments[f[1]], err = strconv.Atoi(f[2])
			must(t, err)
		}
	})
	t.Logf("without a cut: %.1f s, moments %v", time.Since(start).Seconds(), c.moments)
	c.new = c.wanted()
	c.atTarget(m)
	must(t, m.Close())
}

// build makes a static program of this repository.
func build(t *testing.T, out, pkg, ldflags string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w "+ldflags, "-o", out, pkg)
	cmd.Dir = filepath.Join("..", "..")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, text)
	}
}

// wanted are the bundle's digests by place; what it does not change stays.
func (c *cuts) wanted() map[string]string {
	want := maps.Clone(c.old)
	for _, f := range c.bundle.Manifest.Files {
		if f.Component != image.Kubeadm {
			want[f.Place] = f.SHA256
		}
	}
	return want
}

// digests are those of the node's programs.
func (c *cuts) digests(m *Machine) map[string]string {
	c.t.Helper()
	found := map[string]string{}
	for line := range strings.Lines(sh(c.t, m, "sha256sum /usr/local/bin/* /usr/local/sbin/* /usr/bin/kube* /opt/cni/bin/*")) {
		f := strings.Fields(line)
		found[f[1]] = f[0]
	}
	return found
}

// drive runs the driver and hands each line to on; what it cannot do fails the
// test, unless the power is cut.
func (c *cuts) drive(m *Machine, on func(line string), args ...string) (ended bool) {
	c.t.Helper()
	r, w := io.Pipe()
	read := make(chan struct{})
	go func() {
		defer close(read)
		for s := bufio.NewScanner(r); s.Scan(); {
			on(s.Text())
		}
	}()
	var log output
	_, err := m.Exec(c.t.Context(), host.Cmd{
		Args: append([]string{nodeDriver, "-bundle", nodeBundle, "-upgrader", nodeUpgrader}, args...), Stdout: w, Stderr: &log,
	})
	w.Close()
	<-read
	if errors.Is(err, host.ErrNotRunning) {
		return false
	}
	if err != nil {
		c.t.Fatalf("the upgrade: %v\n%s", err, log.String())
	}
	return true
}

// upgrade is one node's way from the old version to the new one, with cuts at
// each of its steps.
func (c *cuts) upgrade() {
	t := c.t
	m := on(t, Spec{Name: "node", From: c.node, IP: "10.89.0.11"})
	before := c.done
	names := []string{"copy", "containerd", "cni-plugins", "kubelet"}
	for i := 0; i < len(names) && !t.Failed() && c.done < powerCuts; {
		if !c.cut(m, names[i]) {
			break // it went through
		}
		boot(t, m)
		c.consistent(m)
		// Once more in the same step, or in the next.
		i += c.rand.IntN(2)
	}
	if t.Failed() {
		return
	}
	c.drive(m, func(string) {})
	c.atTarget(m)
	if !t.Failed() {
		c.recovered += c.done - before
	}
	must(t, m.Close())
}

// cut cuts the power at a random moment of the step, or a little later; false:
// the upgrade ended before.
func (c *cuts) cut(m *Machine, step string) bool {
	t := c.t
	at := fmt.Sprintf("%s:%d", step, 1+c.rand.IntN(c.moments[step]))
	// What is staged is no change of the host, and takes seconds.
	hold := step != "copy" && c.rand.IntN(3) > 0
	var later time.Duration
	switch {
	case step == "copy":
		later = time.Duration(c.rand.IntN(4000)) * time.Millisecond
	case !hold:
		later = time.Duration(c.rand.IntN(300)) * time.Millisecond
	}
	crashed := make(chan error, 1)
	ended := c.drive(m, func(line string) {
		if !strings.HasPrefix(line, "cut ") {
			return
		}
		time.Sleep(later)
		t.Logf("power cut %d: %s, and %d ms", c.done+1, strings.TrimPrefix(line, "cut "), later.Milliseconds())
		crashed <- m.Crash()
	}, "-cut", at, fmt.Sprintf("-hold=%t", hold))
	select {
	case err := <-crashed:
		must(t, err)
		c.done++
		return true
	default:
		if !ended {
			t.Fatalf("the node is gone without a cut\n%s", console(m))
		}
		return false
	}
}

func console(m *Machine) string {
	log, _ := os.ReadFile(m.ConsoleLog())
	return tail(log)
}

// consistent is what has to be true of a node that has booted after a cut.
func (c *cuts) consistent(m *Machine) {
	t := c.t
	t.Helper()
	now := c.digests(m)
	for name, files := range services() {
		isNew, isOld := true, true
		for _, f := range files {
			isNew = isNew && now[f] == c.new[f]
			isOld = isOld && now[f] == c.old[f]
		}
		if !isNew && !isOld {
			t.Errorf("%s: neither all old nor all new: %s", name, c.describe(now, files))
		}
	}
	for file := range c.old {
		if now[file] != c.old[file] && now[file] != c.new[file] {
			t.Errorf("%s is neither the old nor the new one: %q", file, now[file])
		}
	}
	c.services(m)
	if t.Failed() {
		t.Log(sh(t, m, "journalctl -u upgrader-recovery -u containerd -u kubelet --no-pager | tail -n 60; ls -laR /var/lib/upgrader | head -n 80; cat /var/lib/upgrader/runs/*/journal.jsonl"))
	}
}

func (c *cuts) describe(now map[string]string, files []string) string {
	var parts []string
	for _, f := range files {
		what := "another"
		switch now[f] {
		case c.old[f]:
			what = "old"
		case c.new[f]:
			what = "new"
		case "":
			what = "missing"
		}
		parts = append(parts, f+" "+what)
	}
	return strings.Join(parts, ", ")
}

// services have to run, from the files that lie there.
func (c *cuts) services(m *Machine) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 30*time.Second)
	defer cancel()
	for _, check := range []string{
		"ctr version && cmp /proc/$(systemctl show -P MainPID containerd)/exe /usr/local/bin/containerd",
		"curl -sf http://127.0.0.1:10248/healthz && cmp /proc/$(systemctl show -P MainPID kubelet)/exe /usr/bin/kubelet",
	} {
		for {
			res, err := m.Exec(ctx, host.Command("sh", "-c", check))
			if err == nil {
				break
			}
			if ctx.Err() != nil {
				c.t.Errorf("%v\n%s%s", err, res.Stdout, res.Stderr)
				break
			}
			time.Sleep(200 * time.Millisecond)
		}
	}
}

// atTarget is the end of an upgrade.
func (c *cuts) atTarget(m *Machine) {
	t := c.t
	t.Helper()
	now := c.digests(m)
	for file, want := range c.new {
		if now[file] != want {
			t.Errorf("%s has %s, not the new one", file, now[file])
		}
	}
	var more []string
	for file := range now {
		if _, known := c.new[file]; !known {
			more = append(more, file)
		}
	}
	if slices.Sort(more); len(more) > 0 {
		t.Errorf("files left behind: %v", more)
	}
	c.services(m)
	sh(t, m, nodeUpgrader+" bundle verify "+steps.Store+"/"+strings.TrimPrefix(c.bundle.Digest, "sha256:")+"/bundle")
	if left := sh(t, m, "ls -d "+steps.Store+"/* /etc/systemd/system/"+steps.RecoveryUnit+" 2>/dev/null || true"); strings.Count(left, "\n") > 0 || strings.Contains(left, steps.RecoveryUnit) {
		t.Errorf("left behind: %s", left)
	}
}
