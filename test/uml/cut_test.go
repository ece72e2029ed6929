//go:build e2e

package uml

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/node-upgrader/node-upgrader/hostexec"
	"github.com/node-upgrader/node-upgrader/image"
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
	// moments are how many each step has, undisturbed; its service is down from
	// the first of down to the second.
	moments map[string]int
	down    map[string][2]int

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
	pause, err := filepath.Glob(filepath.Join(from.Components().Images, "pause_*.tar"))
	must(t, err)
	if len(pause) != 1 {
		t.Fatalf("images of the sandbox: %q", pause)
	}
	must(t, m.CopyIn(pause[0], "/root/pause.tar"))
	sh(t, m, "ctr -n k8s.io images import /root/pause.tar")
	must(t, m.WriteFile("/var/lib/kubelet/config.yaml", []byte("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"), 0o644))
	sh(t, m, "systemctl enable --now kubelet")
	c.old = c.digests(m)
	must(t, m.PowerOff(t.Context()))
	c.node = filepath.Join(dir, "node")
	must(t, m.Snapshot(c.node))

	boot(t, m)
	start := time.Now()
	c.moments, c.down = map[string]int{}, map[string][2]int{}
	c.drive(m, c.count)
	t.Logf("without a cut: %.1f s, moments %v, services down %v", time.Since(start).Seconds(), c.moments, c.down)
	if len(c.moments) < 4 || len(c.down) != 2 {
		t.Fatal("too few moments")
	}
	c.new = c.wanted()
	c.atTarget(m)
	must(t, m.Close())
}

// count notes a line of the driver, "moment STEP:N before|after OP OBJECT".
func (c *cuts) count(line string) {
	f := strings.Fields(line)
	if f[0] != "moment" {
		return
	}
	step, number, _ := strings.Cut(f[1], ":")
	n, err := strconv.Atoi(number)
	if err != nil {
		c.t.Errorf("%q: %v", line, err)
	}
	c.moments[step] = n
	switch down := c.down[step]; {
	case f[2] == "after" && f[3] == hostexec.OpStop:
		c.down[step] = [2]int{n, n}
	case f[3] == hostexec.OpStart && down[0] > 0:
		c.down[step] = [2]int{down[0], n}
	}
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
	n := 1 + c.rand.IntN(c.moments[step])
	if down, service := c.down[step]; service && c.rand.IntN(2) == 0 {
		n = down[0] + c.rand.IntN(down[1]-down[0]+1)
	}
	at := fmt.Sprintf("%s:%d", step, n)
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
