package steps

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/node-upgrader/node-upgrader/hostexec"
	"github.com/node-upgrader/node-upgrader/hostexec/hostexectest"
	"github.com/node-upgrader/node-upgrader/image"
)

// A program of the bundle that is not the manifest's is never run: a step ends
// before, and so does a look at the whole node, as blocked.
func TestAlteredProgramIsNotRun(t *testing.T) {
	alter := func(name string) {
		t.Helper()
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		data[len(data)-1] ^= 1                                  // of the same size: only its content tells
		if err := os.WriteFile(name, data, 0o755); err != nil { //nolint:gosec // a program
			t.Fatal(err)
		}
	}
	kubelet := newKubeletNode(t)
	alter(filepath.Join(kubelet.env.Bundle.Dir, "bin/kubelet"))
	ran := &hostexectest.Commands{} // knows no command
	kubelet.env.Host.Commands = ran
	containerd := newContainerdNode(t)
	alter(filepath.Join(containerd.env.Bundle.Dir, "bin/containerd"))
	for _, tc := range []struct {
		step Step
		env  Env
	}{{kubelet.step, kubelet.env}, {containerdStep(), containerd.env}} {
		var bad *image.BadBundleError
		if _, err := tc.step.Check(t.Context(), tc.env); !errors.As(err, &bad) || bad.File != "bin/"+tc.step.Name {
			t.Errorf("check of %s: %v", tc.step.Name, err)
		}
		if err := tc.step.Run(t.Context(), tc.env); ExitCode(err) != ExitBlocked {
			t.Errorf("run of %s: %v", tc.step.Name, err)
		}
	}
	for _, line := range append(ran.Ran, containerd.commands.Ran...) {
		if filepath.IsAbs(line) && (filepath.Dir(line) == filepath.Join(kubelet.env.Bundle.Dir, "bin") ||
			len(line) > len(containerd.env.Bundle.Dir) && line[:len(containerd.env.Bundle.Dir)] == containerd.env.Bundle.Dir) {
			t.Errorf("it ran %s", line)
		}
	}
}

func TestLookEndsAtABadBundle(t *testing.T) {
	n := newKubeadmNode(t)
	bad := Step{Name: "containerd", Check: func(context.Context, Env) (State, error) {
		return State{}, &image.BadBundleError{File: "bin/containerd"}
	}}
	_, err := Runner{Env: n.env, Plan: []Step{bad}}.Preflight(t.Context(), "containerd")
	if ExitCode(err) != ExitBlocked {
		t.Errorf("exit %d: %v", ExitCode(err), err)
	}
}

// In the drain's container no program of the host can run. That says nothing
// of the new ones: the steps that the drain protects are needed, not blocked.
func TestNotTriedInAContainer(t *testing.T) {
	kubelet, containerd := newKubeletNode(t), newContainerdNode(t)
	for _, tc := range []struct {
		step Step
		env  Env
	}{{kubelet.step, kubelet.env}, {containerdStep(), containerd.env}} {
		tc.env.Host.Commands = elsewhere{}
		state, err := tc.step.Check(t.Context(), tc.env)
		if err != nil || state.Phase != Needed || len(state.Blocks) > 0 {
			t.Errorf("%s: %+v, %v", tc.step.Name, state, err)
		}
		if want := (Fact{Name: "new " + tc.step.Name + "'s trial", Have: notTried}); !slices.Contains(state.Facts, want) {
			t.Errorf("%s: facts %+v lack %+v", tc.step.Name, state.Facts, want)
		}
	}
}

// elsewhere runs nothing.
type elsewhere struct{}

func (elsewhere) Run(_ context.Context, c hostexec.Command) (hostexec.Output, error) {
	return hostexec.Output{}, &hostexec.CommandError{Argv: c.Argv, Code: -1, Err: hostexec.ErrNotOnHost}
}
