//go:build e2e_upstream

package upstream

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/node-upgrader/node-upgrader/test/figures"
	"github.com/node-upgrader/node-upgrader/test/host"
)

func TestMain(m *testing.M) {
	host.Reexec()
	os.Exit(m.Run())
}

const (
	there      = "/root/upstream" // in the node
	registryAt = "127.0.0.1:5000"
	socket     = "unix:///run/containerd/containerd.sock"
	seed       = "1" // critest runs its specs in a random order
	limit      = 25 * time.Minute
)

// critest's verdict on the containerd of an upgraded node.
func TestCritest(t *testing.T) {
	critest, err := buildCritest(t.Context(), lines{t})
	must(t, err)
	layout := images(t)
	focus := os.Getenv("CRITEST_FOCUS")
	m, done := node(t)

	must(t, m.CopyIn(critest, there+"/critest"))
	must(t, m.CopyIn(layout, there+"/images"))
	must(t, m.CopyIn(filepath.Join(filepath.Dir(layout), "standin"), there+"/standin"))
	sh(t, m, "systemd-run", "--unit=registry", there+"/standin", "registry", "-layout", there+"/images", "-listen", registryAt)
	sh(t, m, "curl", "-sf", "--retry", "20", "--retry-delay", "1", "--retry-connrefused", "http://"+registryAt+"/v2/")

	args := append([]string{
		there + "/critest", "--runtime-endpoint=" + socket, "--image-endpoint=" + socket, "--config=/nonexistent",
		"--ginkgo.v", "--ginkgo.no-color", "--ginkgo.seed=" + seed, "--ginkgo.timeout=" + limit.String(),
		"--test.timeout=" + (limit + time.Minute).String(), "--ginkgo.json-report=" + there + "/report.json",
	}, skipFlags(Exclusions())...)
	if focus != "" {
		args = append(args, "--ginkgo.focus="+focus)
	}
	specs := run(t, m, args)
	n := count(specs)
	t.Logf("critest %s: %d passed, %d failed, %d skipped", criToolsVersion, n.Passed, n.Failed, n.Skipped)
	if focus != "" {
		if n.Passed == 0 || n.Failed > 0 {
			t.Errorf("of the specs that match %q: %v", focus, judge(specs, nil))
		}
		return
	}
	for _, x := range Exclusions() {
		if slices.ContainsFunc(specs, func(s spec) bool { return s.Name == x.Spec && s.State == "skipped" }) {
			t.Logf("skipped: %s: %s", x.Spec, x.Reason)
		}
	}
	for _, wrong := range judge(specs, Exclusions()) {
		t.Error(wrong)
	}
	if os.Getenv("CRITEST_BARE") != "" {
		return // no verdict on an upgraded node
	}
	must(t, figures.Put("e2e-upstream",
		figures.AtLeast("critest_passed", float64(n.Passed), "specs", float64(len(specs)-len(Exclusions()))),
		figures.AtMost("critest_failed", float64(n.Failed), "specs", 0),
		figures.Info("critest_skipped", float64(n.Skipped), "specs"),
	))
	done()
}

// run runs critest in the node and returns its report. The log and the report
// are kept in the folder of the figures.
func run(t *testing.T, m host.Machine, args []string) []spec {
	t.Helper()
	path, err := figures.Path("e2e-upstream")
	must(t, err)
	out := filepath.Dir(path)
	must(t, os.MkdirAll(out, 0o755))
	log, err := os.Create(filepath.Join(out, "critest.log"))
	must(t, err)
	defer log.Close()
	start := time.Now()
	_, err = m.Exec(t.Context(), host.Cmd{Args: args, Stdout: &follow{t: t, to: log, start: start}, Stderr: log})
	var exit *host.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	report, err := m.ReadFile(there + "/report.json")
	if err != nil {
		t.Fatalf("critest wrote no report: %v (see %s)", err, log.Name())
	}
	must(t, os.WriteFile(filepath.Join(out, "critest.json"), report, 0o644))
	specs, err := parseReport(report)
	must(t, err)
	t.Logf("critest took %.0f s", time.Since(start).Seconds())
	return specs
}

// follow copies critest's log, and says from time to time how far it is.
type follow struct {
	t     *testing.T
	to    *os.File
	start time.Time
	done  int
}

func (f *follow) Write(p []byte) (int, error) {
	// Each spec that ran ends with a line such as "• [2.034 seconds]".
	before := f.done / 20
	f.done += strings.Count(string(p), "• [") + strings.Count(string(p), "S [SKIPPED] [")
	if f.done/20 > before {
		f.t.Logf("critest: %d specs in %.0f s", f.done, time.Since(f.start).Seconds())
	}
	return f.to.Write(p)
}

// images makes the images, and standin beside them, and returns their layout.
func images(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	standin, err := buildStandin(t.Context(), dir)
	must(t, err)
	root, err := busyboxRoot(t.Context(), lines{t})
	must(t, err)
	layout := filepath.Join(dir, "images")
	must(t, makeImages(t.Context(), layout, root, standin))
	return layout
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// lines logs what long work says.
type lines struct{ t *testing.T }

func (l lines) Write(p []byte) (int, error) {
	l.t.Helper()
	l.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

func sh(t *testing.T, m host.Machine, args ...string) string {
	t.Helper()
	r, err := m.Exec(t.Context(), host.Command(args...))
	if err != nil {
		t.Fatal(fmt.Errorf("%w\n%s", err, r.Stdout))
	}
	return r.Stdout
}
