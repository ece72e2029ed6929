package steps

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/node-upgrader/node-upgrader/steps/cri"
	"github.com/node-upgrader/node-upgrader/steps/cri/critest"
)

func TestCompareContainers(t *testing.T) {
	// Pod a with a sandbox (10) and a container (11).
	for name, c := range map[string]struct {
		after   func(*containerdNode, *critest.State)
		changed []string
		fails   bool
	}{
		"all go on": {func(*containerdNode, *critest.State) {}, nil, false},
		"restarted": {
			func(_ *containerdNode, s *critest.State) { s.Containers[1].ID, s.Containers[1].PID = "new", 12 },
			[]string{"container app of pod kube-system/a: restarted (pid 11 → 12)"},
			false,
		},
		"same number, another process": {
			func(_ *containerdNode, s *critest.State) { s.Containers[1].Started++ },
			[]string{"container app of pod kube-system/a: restarted (pid 11 → 11)"},
			false,
		},
		"ended by itself": {
			func(n *containerdNode, s *critest.State) {
				n.end(11)
				s.Containers, s.Ended = s.Containers[:1], []string{"app"}
			},
			[]string{"container app of pod kube-system/a: ended"},
			false,
		},
		"the pod ended": {
			func(n *containerdNode, s *critest.State) {
				n.end(10)
				n.end(11)
				s.Containers, s.Ended = nil, []string{"app"}
			},
			[]string{"sandbox of pod kube-system/a: ended", "container app of pod kube-system/a: ended"},
			false,
		},
		"lost": {
			func(n *containerdNode, s *critest.State) {
				n.end(11)
				s.Containers = s.Containers[:1]
			},
			[]string{"container app of pod kube-system/a: gone"},
			true,
		},
		"thrown away while it runs": {
			func(_ *containerdNode, s *critest.State) { s.Containers = nil },
			[]string{
				"sandbox of pod kube-system/a: orphaned (pid 10 goes on without containerd)",
				"container app of pod kube-system/a: orphaned (pid 11 goes on without containerd)",
			},
			true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newContainerdNode(t)
			n.container("pause", "a", "", 10)
			n.container("app", "a", "app", 11)
			n.must(surveyContainers(t.Context(), n.env, n.unit().MainPID))
			n.runtime.Change(func(s *critest.State) { c.after(n, s) })
			err := compareContainers(t.Context(), n.env, comebackPatience)
			if (err != nil) != c.fails {
				t.Errorf("error: %v", err)
			}
			if err != nil && (ExitCode(err) != ExitFailed || len(Hints(err)) == 0) {
				t.Errorf("exit code %d, hints %v", ExitCode(err), Hints(err))
			}
			var kept []ChangedContainer
			if _, err := n.env.Record.Load(containersChanged, &kept); err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, k := range kept {
				got = append(got, k.String())
				if !strings.Contains(n.log.String(), k.String()) {
					t.Errorf("%s is not in the log", k)
				}
			}
			if diff := cmp.Diff(c.changed, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// While the surveyed containerd runs nothing has happened: what runs now counts.
func TestSurveyIsTakenAgain(t *testing.T) {
	n := newContainerdNode(t)
	n.container("a", "a", "app", 11)
	pid := n.unit().MainPID
	n.must(surveyContainers(t.Context(), n.env, pid))
	n.container("b", "b", "app", 12)
	n.must(surveyContainers(t.Context(), n.env, pid))
	var kept survey
	if _, err := n.env.Record.Load(containersBefore, &kept); err != nil || len(kept.Containers) != 2 {
		t.Errorf("%+v %v", kept, err)
	}
	// After a restart nobody looked at, it does not.
	n.runtime.Change(func(s *critest.State) { s.Containers = []cri.Container{} })
	n.process(99, 99, "")
	n.must(surveyContainers(t.Context(), n.env, 99))
	if _, err := n.env.Record.Load(containersBefore, &kept); err != nil || len(kept.Containers) != 2 {
		t.Errorf("%+v %v", kept, err)
	}
}

// After a reboot in the middle of an attempt nothing of before can still run.
func TestContainersAreNotComparedAcrossReboots(t *testing.T) {
	n := newContainerdNode(t)
	n.env.Staging.BootID = "one"
	n.must(runContainerd(t.Context(), n.env))
	before := survey{Daemon: process{1, 2}, Boot: "one", Containers: []cri.Container{{ID: "a", Pod: "a", Name: "a", PID: 9, Started: 9}}}
	n.must(n.env.Record.Save(t.Context(), containersBefore, before))
	n.env.Staging.BootID = "two"
	n.must(runContainerd(t.Context(), n.env))
	if want := "the machine was rebooted, containers cannot be compared"; !strings.Contains(n.log.String(), want) {
		t.Errorf("log: %s", n.log)
	}
	if got := n.check(); got.Phase != Done {
		t.Errorf("after: %+v", got)
	}
	// The next attempt of an interrupted one takes a survey of its own.
	n.must(n.env.Record.Save(t.Context(), containersBefore, before))
	n.must(surveyContainers(t.Context(), n.env, n.unit().MainPID))
	var kept survey
	if _, err := n.env.Record.Load(containersBefore, &kept); err != nil || kept.Boot != "two" || len(kept.Containers) != 0 {
		t.Errorf("%+v %v", kept, err)
	}
}

func (n *containerdNode) end(pid int) {
	n.must(os.RemoveAll(filepath.Join(n.root, "proc", strconv.Itoa(pid))))
}
