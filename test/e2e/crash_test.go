//go:build e2e

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/node-upgrader/node-upgrader/test/cluster"
	"github.com/node-upgrader/node-upgrader/test/figures"
	"github.com/node-upgrader/node-upgrader/test/host"
	"github.com/node-upgrader/node-upgrader/test/payload"
)

// seedVariable repeats a run of the crash tests.
const seedVariable = "UPGRADER_CRASH_SEED"

// crashRun is the run's name on the node.
const crashRun = "crashes"

// stagingStep changes nothing of the host and is not in the journal: its lines
// are the files that it has staged.
const stagingStep = "copy"

// An accident comes when the journal has so many lines of a step, or the step's
// last one.
type accident struct {
	step  string
	entry int
	// kubeadm: it comes while kubeadm runs, and so long after its start.
	kubeadm time.Duration
	host    bool // the whole host, else every process of the upgrader
}

func (a accident) String() string {
	what, when := "SIGKILL", fmt.Sprintf("at line %d of %s", a.entry, a.step)
	if a.host {
		what = "crash of the host"
	}
	if a.kubeadm > 0 {
		when = fmt.Sprintf("%s after kubeadm's start", a.kubeadm.Round(time.Millisecond))
	}
	return what + " " + when
}

// accidents are one for each step, in their order; hosts of them are crashes of
// the whole host. A step's entry is first about how many lines it writes.
func accidents(r *rand.Rand, hosts int) []accident {
	list := []accident{
		{step: stagingStep, entry: 25},
		{step: "containerd", entry: 36},
		{step: "cni-plugins", entry: 77},
		{step: "kubeadm", entry: 23},
		{step: "drain", entry: 11},
		{step: "kubelet", entry: 30},
		{step: "uncordon", entry: 4},
	}
	for i := range list {
		list[i].entry = 1 + r.IntN(list[i].entry)
		if list[i].step == "kubeadm" && r.IntN(2) == 0 {
			list[i].kubeadm = 1 + time.Duration(r.Int64N(int64(90*time.Second)))
		}
	}
	for _, i := range r.Perm(len(list))[:hosts] {
		list[i].host = true
	}
	return list
}

// random is seeded by seedVariable, else by the time; the seed is shown.
func random(t *testing.T) *rand.Rand {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv(seedVariable); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		must(t, err)
	}
	t.Logf("%s=%d", seedVariable, seed)
	return rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // it has to be repeatable
}

// One upgrade that is struck once in each of its steps, three times by a crash
// of the whole host, and resumed each time.
func TestCrashes(t *testing.T) {
	t.Parallel()
	struck := upgradeThrough(t, accidents(random(t), 3))
	put(t, struck.rows()...)
}

// strikes counts.
type strikes struct{ crashes, recovered int }

func (s strikes) rows() []figures.Row {
	return []figures.Row{
		figures.Info("host_crashes", float64(s.crashes), "crashes"),
		figures.AtLeast("host_crashes_recovered", float64(s.recovered), "crashes", float64(s.crashes)),
	}
}

// upgradeThrough upgrades a control plane through the accidents, which are in
// the order of the steps. Each time the node has to be Ready before the upgrade
// goes on, and what was there before is there still.
func upgradeThrough(t *testing.T, list []accident) (struck strikes) {
	p := load(t)
	c, client := up(t, 0)
	s := &struckNode{t: t, c: c, client: client, m: c.ControlPlane}
	must(t, p.CopyTo(s.m))
	must(t, p.ImportImages(t.Context(), s.m))
	s.before()
	for _, a := range list {
		start := time.Now()
		end := s.start()
		s.await(a, end)
		t.Logf("%s, %.1f s after the start", a, time.Since(start).Seconds())
		if a.host {
			struck.crashes++
			s.crash(end)
			s.check()
			struck.recovered++
		} else {
			s.kill(end)
		}
	}
	last := <-s.start()
	if last.err != nil || last.res.Code != 0 {
		t.Fatalf("the last run: exit %d, %v\n%s", last.res.Code, last.err, last.res.Stderr)
	}
	must(t, c.Wait(t.Context()))
	atTarget(t, s.m, client, p.Target.Set, true)
	s.check()
	allRunning(t, client)
	unschedulable(t, client, s.m)
	return struck
}

// struckNode is a node on which an upgrade is interrupted.
type struckNode struct {
	t      *testing.T
	c      *cluster.Cluster
	client kubernetes.Interface
	m      host.Machine
	object *corev1.ConfigMap // in the cluster before it began
	count  int               // in the workload's file then
}

// before makes what check looks for.
func (s *struckNode) before() {
	s.t.Helper()
	s.count = counter(s.t, s.m)
	s.object = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "before-the-crashes"}, Data: map[string]string{"count": strconv.Itoa(s.count)}}
	_, err := s.client.CoreV1().ConfigMaps("default").Create(s.t.Context(), s.object, metav1.CreateOptions{})
	must(s.t, err)
}

func (s *struckNode) check() {
	s.t.Helper()
	kept, err := s.client.CoreV1().ConfigMaps("default").Get(s.t.Context(), s.object.Name, metav1.GetOptions{})
	must(s.t, err)
	if kept.Data["count"] != s.object.Data["count"] {
		s.t.Errorf("the object is not what it was: %v", kept.Data)
	}
	if now := counter(s.t, s.m); now < s.count {
		s.t.Errorf("the workload counted %d before and %d after", s.count, now)
	}
}

type ended struct {
	res host.Result
	err error
}

// start starts the upgrade, or goes on with it.
func (s *struckNode) start() <-chan ended {
	end := make(chan ended, 1)
	go func() {
		res, err := s.m.Exec(s.t.Context(), host.Command(payload.NodeUpgrader, "run",
			"--run-id="+crashRun, "--ignore-preflight-errors=SystemVerification"))
		end <- ended{res, err}
	}()
	return end
}

// await waits for the moment of the accident. A run that ends before it, well or
// not, is a failure.
func (s *struckNode) await(a accident, end <-chan ended) {
	s.t.Helper()
	limit := time.After(15 * time.Minute)
	for {
		now := s.journal(a.step)
		switch {
		case a.kubeadm > 0 && now.kubeadm:
			s.whileKubeadmRuns(a, now)
			return
		case a.kubeadm == 0 && now.lines >= a.entry, now.over:
			return
		}
		select {
		case e := <-end:
			s.t.Fatalf("before the %s the run ended: exit %d, %v\n%s", a, e.res.Code, e.err, e.res.Stderr)
		case <-limit:
			s.t.Fatalf("the %s did not come in 15 minutes", a)
		case <-time.After(time.Millisecond):
		}
	}
}

// whileKubeadmRuns waits for the time to pass, or for kubeadm's end.
func (s *struckNode) whileKubeadmRuns(a accident, before written) {
	for until := time.Now().Add(a.kubeadm); time.Now().Before(until); time.Sleep(5 * time.Millisecond) {
		if s.journal(a.step).lines > before.lines {
			return
		}
	}
}

// written is what the journal has of a step: how many lines, whether the last of
// them is that kubeadm is started, and whether the step has ended.
type written struct {
	lines         int
	kubeadm, over bool
}

// journal reads the run's journal from outside of the node.
func (s *struckNode) journal(step string) (w written) {
	if step == stagingStep {
		count := strings.TrimSpace(sh(s.t, s.m, "sh", "-c", "find /var/lib/upgrader/bundles -mindepth 2 2>/dev/null | wc -l"))
		n, err := strconv.Atoi(count)
		must(s.t, err)
		return written{lines: n, over: s.journal("containerd").lines > 0}
	}
	data, err := s.m.ReadFile("/var/lib/upgrader/runs/" + crashRun + "/journal.jsonl")
	if err != nil {
		return w // not yet
	}
	for line := range bytes.Lines(data) {
		var e struct{ Event, Step, Op, Object string }
		if json.Unmarshal(line, &e) != nil || e.Step != step {
			continue // of another, or being written
		}
		w.lines++
		w.kubeadm = e.Event == "intent" && e.Op == "run" && strings.Contains(e.Object, "kubeadm upgrade")
		w.over = e.Event == "result"
	}
	return w
}

// crash ends every process of the host at once, and boots it: it has to become
// Ready before anybody does anything about it.
func (s *struckNode) crash(end <-chan ended) {
	s.t.Helper()
	must(s.t, s.m.Crash())
	<-end
	must(s.t, s.m.Boot(s.t.Context()))
	booted := time.Now()
	awaitReady(s.t, s.client, s.m.Name(), booted)
	node, err := s.client.CoreV1().Nodes().Get(s.t.Context(), s.m.Name(), metav1.GetOptions{})
	must(s.t, err)
	if !node.Spec.Unschedulable {
		must(s.t, s.c.Wait(s.t.Context()))
	}
	s.t.Logf("Ready %.1f s after the boot", time.Since(booted).Seconds())
}

// kill kills every process of the upgrader, the unit's too, which systemd
// starts again.
func (s *struckNode) kill(end <-chan ended) {
	s.t.Helper()
	s.killAll()
	select {
	case <-end:
	case <-time.After(time.Minute):
		s.t.Fatal("the upgrader was killed and its caller goes on")
	}
}

func (s *struckNode) killAll() {
	s.t.Helper()
	sh(s.t, s.m, "sh", "-c", "kill -KILL $(pgrep -x upgrader) 2>/dev/null || true")
}
