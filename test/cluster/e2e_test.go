//go:build e2e

package cluster

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/node-upgrader/node-upgrader/test/host"
)

func up(t *testing.T, opts Options) *Cluster {
	t.Helper()
	opts.Progress = os.Stderr
	g, err := host.Open(t.Context(), host.Options{Progress: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	c, err := Up(t.Context(), g, opts)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestClusterSurvivesACrash(t *testing.T) {
	c := up(t, Options{Set: "1.35", Workers: 1})
	out, err := c.Kubectl(t.Context(), "get", "nodes", "--no-headers")
	if err != nil || strings.Count(out, " Ready ") != 2 || strings.Count(out, "v"+c.Set.Kubernetes) != 2 {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, m := range c.Nodes() {
		if data, err := m.ReadFile(ForeignPlugin); err != nil || string(data) != ForeignPluginText {
			t.Errorf("%s: foreign plugin: %q, %v", m.Name(), data, err)
		}
		if data, err := m.ReadFile(WorkloadData + "/counter"); err != nil || len(data) == 0 {
			t.Errorf("%s: workload's data: %d bytes, %v", m.Name(), len(data), err)
		}
	}
	// A pod of one node reaches the other's, by the service network too.
	ip, err := c.Kubectl(t.Context(), "get", "pod", "-l", "app=workload-cp", "-o", "jsonpath={.items[0].status.podIP}")
	if err != nil {
		t.Fatal(err)
	}
	for _, url := range []string{"http://" + ip + ":8080", "https://10.96.0.1/version"} {
		if _, err := c.Worker.Exec(t.Context(), host.Command("curl", "-sfk", "-m", "10", url)); err != nil {
			t.Error(err)
		}
	}

	for _, m := range c.Nodes() {
		if err := m.Crash(); err != nil {
			t.Fatal(err)
		}
	}
	crashed := time.Now()
	for _, m := range c.Nodes() {
		if err := m.Boot(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.waitFresh(t.Context(), crashed); err != nil {
		t.Fatal(err)
	}
	t.Logf("after a crash of both nodes, all runs again in %.1f s", time.Since(crashed).Seconds())
}

func TestBareHostHasItsImages(t *testing.T) {
	for _, set := range []string{"1.35", "1.36"} {
		c := up(t, Options{Set: set, Bare: true})
		res, err := c.ControlPlane.Exec(t.Context(), host.Command("ctr", "-n", "k8s.io", "images", "list", "-q"))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range c.Components.ImageNames {
			if !strings.Contains(res.Stdout, name) {
				t.Errorf("%s: no image %s", set, name)
			}
		}
	}
}
