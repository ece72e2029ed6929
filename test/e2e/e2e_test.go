//go:build e2e

// Package e2e upgrades real nodes: kubeadm clusters on throwaway hosts.
package e2e

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/node-upgrader/node-upgrader/test/cluster"
	"github.com/node-upgrader/node-upgrader/test/figures"
	"github.com/node-upgrader/node-upgrader/test/host"
	"github.com/node-upgrader/node-upgrader/test/payload"
)

const (
	from = "1.35"
	to   = "1.36"
)

func TestMain(m *testing.M) {
	host.Reexec()
	if root := os.Getenv(armVariable); root != "" {
		fmt.Fprintln(os.Stderr, armAndWait(root))
		os.Exit(1)
	}
	dir, err := os.MkdirTemp("", "upgrader-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	made.dir = dir
	code := m.Run()
	if err := os.RemoveAll(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// lines logs what long work says.
type lines struct{ t *testing.T }

func (l lines) Write(p []byte) (int, error) {
	l.t.Helper()
	l.t.Logf("%s", p)
	return len(p), nil
}

var made struct { //nolint:gochecknoglobals // built once for all tests
	sync.Once
	dir     string
	payload payload.Payload
	err     error
}

// load is what nodes are upgraded with, built once.
func load(t *testing.T) payload.Payload {
	t.Helper()
	made.Do(func() {
		made.payload, made.err = payload.Make(context.Background(), to, made.dir, os.Stderr)
	})
	must(t, made.err)
	return made.payload
}

// up is a fresh cluster at the old version.
func up(t *testing.T, workers int) (*cluster.Cluster, *kubernetes.Clientset) {
	t.Helper()
	prepare(t, workers)
	return upOn(t, ground(t), workers)
}

// prepare makes the snapshots that upOn starts from.
func prepare(t *testing.T, workers int) {
	t.Helper()
	must(t, cluster.Prepare(t.Context(), cluster.Options{Set: from, Workers: workers, Progress: lines{t}}))
}

// ground is an empty one.
func ground(t *testing.T) *host.Ground {
	t.Helper()
	g, err := host.Open(t.Context(), host.Options{Progress: lines{t}})
	must(t, err)
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Errorf("clean up: %v", err)
		}
	})
	return g
}

// upOn is a fresh cluster at the old version on a ground, after prepare.
func upOn(t *testing.T, g *host.Ground, workers int) (*cluster.Cluster, *kubernetes.Clientset) {
	t.Helper()
	start := time.Now()
	c, err := cluster.Up(t.Context(), g, cluster.Options{Set: from, Workers: workers, Progress: lines{t}})
	must(t, err)
	t.Logf("cluster up in %.1f s", time.Since(start).Seconds())
	client, err := c.Client()
	must(t, err)
	return c, client
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// record puts figures into out/figures-e2e.json.
func record(t *testing.T, rows ...figures.Row) {
	t.Helper()
	must(t, figures.Put("e2e", rows...))
	for _, r := range rows {
		t.Logf("%s = %.2f %s (goal %q, holds %v)", r.Name, r.Value, r.Unit, r.Goal, r.Holds)
	}
}

// put puts figures into out/figures-faults.json.
func put(t *testing.T, rows ...figures.Row) {
	t.Helper()
	must(t, figures.Put("faults", rows...))
	for _, r := range rows {
		t.Logf("%s = %.2f %s", r.Name, r.Value, r.Unit)
	}
}
