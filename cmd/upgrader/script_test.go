package main

import (
	"bytes"
	"debug/elf"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/node-upgrader/node-upgrader/image/imagetest"
	"github.com/node-upgrader/node-upgrader/manifests"
	"github.com/node-upgrader/node-upgrader/steps"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"upgrader": func() { os.Exit(Main()) }})
}

// The scripts run the real main: what a user types, and what he sees.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:   "../../testdata/script",
		Setup: releases,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": exits,
		},
	})
}

// releases serves two releases of each project as a mirror would, at $MIRROR and
// $HTTPS_MIRROR, for whose certificate $HTTPS_CA vouches, and gives the script
// programs of its own: kubelet and runc in $PROGRAMS.
func releases(env *testscript.Env) error {
	files := map[string][]byte{}
	for _, r := range []imagetest.Release{
		{Kubernetes: "v1.36.3", Containerd: "v2.3.7", Runc: "v1.4.3", CNIPlugins: "v1.9.1"},
		{Kubernetes: "v1.36.4", Containerd: "v2.3.7", Runc: "v1.4.3", CNIPlugins: "v1.9.1"},
	} {
		maps.Copy(files, r.Files())
	}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		data, ok := files[strings.TrimPrefix(r.URL.Path, "/")]
		if !ok {
			http.NotFound(w, r)
			return
		}
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
	})
	plain, safe := httptest.NewServer(handler), httptest.NewUnstartedServer(handler)
	safe.Config.ErrorLog = log.New(io.Discard, "", 0) // a script makes it complain
	safe.StartTLS()
	env.Defer(plain.Close)
	env.Defer(safe.Close)
	authority := filepath.Join(env.WorkDir, ".ca.pem")
	programs := filepath.Join(env.WorkDir, ".programs")
	env.Setenv("MIRROR", plain.URL)
	env.Setenv("HTTPS_MIRROR", safe.URL)
	env.Setenv("HTTPS_CA", authority)
	env.Setenv("PROGRAMS", programs)
	env.Setenv("XDG_CACHE_HOME", filepath.Join(env.WorkDir, ".cache"))
	return errors.Join(
		os.Mkdir(programs, 0o755),
		os.WriteFile(authority, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: safe.Certificate().Raw}), 0o644),
		os.WriteFile(filepath.Join(programs, "kubelet"), imagetest.Program(elf.EM_X86_64, "Kubernetes v1.36.3\n"), 0o755), //nolint:gosec // a program
		os.WriteFile(filepath.Join(programs, "runc"), imagetest.Program(elf.EM_X86_64, "runc version 1.5.2\n"), 0o755),    //nolint:gosec // a program
	)
}

// exits CODE COMMAND…: the command has to end with this exit code.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE COMMAND…")
	}
	err := ts.Exec(args[1], args[2:]...)
	code := "0"
	if err != nil {
		code = err.Error()
	}
	if code != "0" && code != "exit status "+args[0] || code == "0" && args[0] != "0" {
		ts.Fatalf("%v ended with %q, want exit code %s", args[1:], code, args[0])
	}
}

// The pod's containers are the plan's steps: two rooms that may not import each
// other have to say the same.
func TestManifestsFollowThePlan(t *testing.T) {
	if diff := cmp.Diff(steps.Names(steps.Plan(steps.Options{})), manifests.DefaultSteps()); diff != "" {
		t.Error(diff)
	}
	pod, err := manifests.Pod(manifests.PodOptions{Node: "n", Image: "r.example/u@sha256:" + string(slices.Repeat([]byte("a"), 64)), DrainFirst: true})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	root := newRoot(nil, nil, nil)
	if first := pod.Spec.InitContainers[0]; first.Name != manifests.ForecastContainer {
		t.Errorf("the first container is %s", first.Name)
	}
	for _, c := range pod.Spec.InitContainers {
		names = append(names, c.Name)
		cmd, rest, err := root.Find(c.Args)
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.ParseFlags(rest); err != nil {
			t.Errorf("%v: %v", c.Args, err)
		}
	}
	if diff := cmp.Diff(append([]string{manifests.ForecastContainer}, steps.Names(steps.Plan(steps.Options{DrainFirst: true}))...), names); diff != "" {
		t.Error(diff)
	}
	if manifests.UpgraderLabel != steps.OwnLabel {
		t.Errorf("the pod has label %s, the drain leaves %s", manifests.UpgraderLabel, steps.OwnLabel)
	}
}
