// Command driver runs the steps that change a node's own files (copy,
// containerd, cni-plugins, kubelet) on a machine without a cluster: the real
// steps on the real host, systemd and containerd, and an API server that is this
// process. At a chosen change of the host it says so, for somebody to cut the
// power.
//
//	driver -bundle DIR -upgrader FILE [-cut STEP:N] [-hold=false]
//
// A moment is right before or right after a change. On stdout is a line for each,
// "moment STEP:N before|after CHANGE", and the line "cut …" at the N-th moment of
// STEP, or the first one after it. There it waits for ever, or goes on with
// -hold=false.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/node-upgrader/node-upgrader/hostexec"
	"github.com/node-upgrader/node-upgrader/image"
	"github.com/node-upgrader/node-upgrader/steps"
	"github.com/node-upgrader/node-upgrader/steps/cri"
)

const runID = "power-cuts"

func main() {
	var o options
	flag.StringVar(&o.bundle, "bundle", "", "directory of the bundle")
	flag.StringVar(&o.upgrader, "upgrader", "", "the program that is staged")
	flag.StringVar(&o.cut, "cut", "", "STEP:N, where the power is to be cut")
	flag.BoolVar(&o.hold, "hold", true, "wait there for ever")
	flag.Parse()
	if err := run(context.Background(), o); err != nil {
		fmt.Fprintln(os.Stderr, "driver:", err)
		os.Exit(steps.ExitCode(err))
	}
}

type options struct {
	bundle, upgrader, cut string
	hold                  bool
}

func stepNames() []string { return []string{"copy", "containerd", "cni-plugins", "kubelet"} }

func run(ctx context.Context, o options) error {
	watch := &cutter{out: os.Stdout, hold: o.hold}
	if err := watch.parse(o.cut); err != nil {
		return err
	}
	env, done, err := newEnv(o, watch)
	if err != nil {
		return err
	}
	defer done()
	plan, err := steps.Only(steps.Plan(env.Options), stepNames())
	if err != nil {
		return err
	}
	unlock, err := steps.Lock(ctx, env)
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := (steps.Runner{Env: env, Plan: plan}).Preflight(ctx); err != nil {
		return err
	}
	for i, name := range stepNames() {
		if i > 0 { // staged by now
			if env.Program, err = stagedUpgrader(ctx, env); err != nil {
				return err
			}
		}
		watch.begin(name)
		if _, err := (steps.Runner{Env: env, Plan: plan}).Work(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

func newEnv(o options, watch hostexec.Watch) (steps.Env, func(), error) {
	bundle, err := image.Open(o.bundle)
	if err != nil {
		return steps.Env{}, nil, err
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return steps.Env{}, nil, err
	}
	client, stop, err := apiServer(bundle.Manifest.KubernetesVersion)
	if err != nil {
		return steps.Env{}, nil, err
	}
	files := hostexec.NewFS("/")
	units := hostexec.NewSystemd(files)
	host := hostexec.Host{FS: files, Commands: hostexec.Exec{}, Units: units}
	env := steps.Env{
		Host: host, Bundle: bundle, Node: steps.Node{Name: nodeName, Role: steps.Worker},
		Record: steps.NewRecord(files, runID),
		Runtime: func(ctx context.Context) (cri.Client, error) {
			socket, err := steps.ContainerdSocket(ctx, host)
			if err != nil {
				return nil, err
			}
			return cri.Dial(ctx, files, socket)
		},
		Kube:    func(context.Context) (kubernetes.Interface, error) { return client, nil },
		Admin:   func(context.Context) (kubernetes.Interface, error) { return client, nil },
		Probe:   probe,
		Clock:   steps.SystemClock(),
		Log:     slog.New(slog.NewTextHandler(os.Stderr, nil)),
		Watch:   watch,
		Staging: steps.Staging{Upgrader: o.upgrader, BootID: strings.TrimSpace(string(boot))},
		Options: steps.Options{RunID: runID, Drain: steps.DefaultDrain()},
	}
	env.Record.Journal().Describe(steps.Run{
		ID: runID, Bundle: bundle.Digest, Kubernetes: bundle.Manifest.KubernetesVersion, Node: env.Node, By: "driver",
	}, time.Now)
	return env, func() { units.Close(); stop() }, nil
}

func stagedUpgrader(ctx context.Context, env steps.Env) (string, error) {
	staged, err := image.FindStaged(ctx, steps.Store, env.Bundle.Digest, env.Staging.BootID)
	return staged.Upgrader, err
}

func probe(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	return nil
}

func clientOf(url string) (kubernetes.Interface, error) {
	return kubernetes.NewForConfig(&rest.Config{Host: url, ContentConfig: rest.ContentConfig{ContentType: "application/json"}})
}

// cutter is the watch that says when.
type cutter struct {
	out  io.Writer
	step string // where to cut
	n    int
	hold bool

	mu  sync.Mutex
	now string // the step that runs
	at  int    // its moments so far
	cut bool
}

func (c *cutter) parse(at string) error {
	if at == "" {
		return nil
	}
	step, n, _ := strings.Cut(at, ":")
	if !slices.Contains(stepNames(), step) {
		return fmt.Errorf("-cut %s: no such step", at)
	}
	var err error
	c.step = step
	c.n, err = strconv.Atoi(n)
	return err
}

func (c *cutter) begin(step string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now, c.at = step, 0
}

// Before implements hostexec.Watch.
func (c *cutter) Before(e hostexec.Effect) error { c.moment("before", e); return nil }

// After implements hostexec.Watch.
func (c *cutter) After(e hostexec.Effect, _ error) { c.moment("after", e) }

func (c *cutter) moment(when string, e hostexec.Effect) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.now == "" {
		return
	}
	c.at++
	fmt.Fprintf(c.out, "moment %s:%d %s %s\n", c.now, c.at, when, e)
	if c.step == "" || c.cut {
		return
	}
	steps := stepNames()
	here, there := slices.Index(steps, c.now), slices.Index(steps, c.step)
	if here < there || here == there && c.at < c.n {
		return
	}
	c.cut = true
	fmt.Fprintf(c.out, "cut %s:%d %s %s\n", c.now, c.at, when, e)
	if c.hold {
		select {}
	}
}
