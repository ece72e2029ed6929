//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/node-upgrader/node-upgrader/test/figures"
	"github.com/node-upgrader/node-upgrader/test/host"
	"github.com/node-upgrader/node-upgrader/test/payload"
)

// Starts of the upgrader at once: most of one run, by hand and by pod, some of
// another.
const (
	startsOfOne     = 36
	startsOfAnother = 10
	startsByPod     = 4
)

// Fifty starts at once: one works, those of its run follow it, those of the
// other are refused and told whom they are to wait for. Nothing is done twice,
// nobody hangs, and nobody is lost.
func TestFiftyAtOnce(t *testing.T) {
	t.Parallel()
	p := load(t)
	c, client := up(t, 0)
	cp := c.ControlPlane
	dir := t.TempDir()
	replaced := map[string]string{"cni": p.Target.CNI}
	for _, name := range []string{"containerd", "containerd-shim-runc-v2", "ctr", "runc"} {
		replaced["bin/"+name] = filepath.Join(p.Target.Bin, name)
	}
	// Kubernetes stays as it is, so that the work is a matter of seconds.
	p, err := p.Mixed(t.Context(), c.Components, replaced, dir)
	must(t, err)
	must(t, p.Pack(t.Context(), "node-upgrader.dev/upgrader:fifty", filepath.Join(dir, "image.tar")))
	must(t, p.CopyTo(cp))
	must(t, p.ImportSelf(t.Context(), cp))
	before := containers(t, client, cp.Name())
	apply(t, c, p, "rbac")

	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	start := time.Now()
	for i := range startsByPod {
		apply(t, c, p, "pod", "--node", cp.Name(), "--name", fmt.Sprintf("fifty-%d", i), "--image", p.Ref,
			"--image-pull-policy=Never", "--run-id=one", "--steps=copy,containerd,cni-plugins")
	}
	var all sync.WaitGroup
	ends := make([]startEnd, startsOfOne+startsOfAnother)
	for i := range ends {
		ends[i].run = "one"
		if i%5 == 4 && i/5 < startsOfAnother {
			ends[i].run = "another"
		}
		all.Go(func() { ends[i].start(ctx, cp) })
	}
	all.Wait()
	for i := range startsByPod {
		pod := await(t, client, fmt.Sprintf("fifty-%d", i), 3*time.Minute, succeeded)
		t.Logf("%s: %s", pod.Name, pod.Status.Phase)
	}
	put(t, figures.Info("fifty_starts_seconds", time.Since(start).Seconds(), "s"))
	judge(t, cp, ends)
	must(t, c.Wait(t.Context()))
	if gone := missing(before, containers(t, client, cp.Name())); len(gone) > 0 {
		t.Errorf("containers that did not survive: %v", gone)
	}
	if code, out, stderr := upgrader(t, cp, payload.NodeUpgrader, nil, "verify"); code != 0 {
		t.Errorf("verify: exit %d\n%s%s", code, out, stderr)
	}
}

// startEnd is one start by hand and how it ended.
type startEnd struct {
	run            string
	code           int
	stdout, stderr string
	err            error
}

func (s *startEnd) start(ctx context.Context, m host.Machine) {
	res, err := m.Exec(ctx, host.Command(payload.NodeUpgrader, "run", "--run-id="+s.run))
	s.code, s.stdout, s.stderr = res.Code, res.Stdout, res.Stderr
	var exit *host.ExitError
	if err != nil && !errors.As(err, &exit) {
		s.err = err
	}
}

// judge tells who worked, by the runs' own logs, and looks at what was said to
// the others.
func judge(t *testing.T, m host.Machine, ends []startEnd) {
	t.Helper()
	logs := sh(t, m, "sh", "-c", "cd /var/lib/upgrader/runs && grep -H . */log.jsonl")
	worked := map[string]string{} // the run, by the work
	for line := range strings.Lines(logs) {
		run, entry, _ := strings.Cut(line, "/log.jsonl:")
		for name, marks := range map[string][]string{
			"containerd's restart": {`"msg":"stopping"`, `"unit":"containerd.service"`},
			"a plugin":             {`"msg":"installed"`, `"file":"/opt/cni/bin/bridge"`},
		} {
			if strings.Contains(entry, marks[0]) && strings.Contains(entry, marks[1]) {
				if other := worked[name]; other != "" {
					t.Errorf("%s: done by run %s and again by run %s", name, other, run)
				}
				worked[name] = run
			}
		}
	}
	winner := worked["containerd's restart"]
	if len(worked) != 2 || winner != worked["a plugin"] {
		t.Fatalf("who worked: %v\n%s", worked, logs)
	}
	count := map[string]int{}
	for i, s := range ends {
		outcome := ""
		switch {
		case s.err != nil:
			t.Errorf("start %d of run %s: %v", i, s.run, s.err)
		case s.code == 0 && strings.Contains(s.stderr, "attached to the running unit"):
			outcome = "followed"
		case s.code == 0 && strings.Contains(s.stderr, "nothing to do"):
			outcome = "came when all was done"
		case s.code == 0 && s.run == winner:
			outcome = "worked or followed"
		case s.code == 3 && s.run != winner && strings.Contains(s.stderr, "run "+winner):
			outcome = "was refused"
		default:
			t.Errorf("start %d of run %s: exit %d\n%s%s", i, s.run, s.code, s.stdout, s.stderr)
		}
		count[outcome]++
	}
	t.Logf("run %s worked; by hand: %v", winner, count)
}
