package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/node-upgrader/node-upgrader/hostexec"
	"github.com/node-upgrader/node-upgrader/image"
	"github.com/node-upgrader/node-upgrader/steps"
	"github.com/node-upgrader/node-upgrader/steps/cri"
	"github.com/node-upgrader/node-upgrader/steps/kube"
)

// session is one command's view of the node.
type session struct {
	config config
	runner steps.Runner
	log    *logger
	units  *hostexec.Systemd
}

func (s *session) close() {
	s.units.Close()
	s.log.close()
}

// newSession opens the bundle and looks at who the node is. It writes nothing.
func newSession(ctx context.Context, c config, p place, errOut io.Writer) (*session, error) {
	dir, err := bundleDir(c)
	if err != nil {
		return nil, err
	}
	bundle, err := image.Open(dir)
	if err != nil {
		return nil, err
	}
	if c.options.RunID == "" {
		if c.options.RunID, err = steps.RunOf(hostexec.NewFS(p.root()), bundle.Digest); err != nil {
			return nil, err
		}
	}
	return sessionWith(ctx, c, p, errOut, bundle)
}

// sessionOfRun is for what undoes a run that is on the node already, the last one
// unless the flags name another. Its bundle is the one that is staged there, if
// it still is: nothing that is undone needs it.
func sessionOfRun(ctx context.Context, c config, p place, errOut io.Writer) (*session, error) {
	files := hostexec.NewFS(p.root())
	if c.options.RunID == "" {
		var err error
		if c.options.RunID, err = steps.LastRun(files); err != nil {
			return nil, err
		}
	}
	history, err := steps.NewRecord(files, c.options.RunID).Journal().History()
	if err != nil {
		return nil, err
	}
	if history.Seq == 0 {
		return nil, &steps.UsageError{Reason: fmt.Sprintf("--run-id %s: there is no such run on this node (upgrader status)", c.options.RunID)}
	}
	var bundle *image.Bundle
	if staged, err := findStaged(ctx, files, history.Run.Bundle); err == nil {
		bundle = staged.Bundle
	}
	s, err := sessionWith(ctx, c, p, errOut, bundle)
	if err == nil {
		s.runner.Env.Record.Journal().Describe(history.Run, time.Now)
	}
	return s, err
}

func findStaged(ctx context.Context, files hostexec.FS, digest string) (image.Staged, error) {
	store, err := files.Resolve(steps.Store)
	if err != nil {
		return image.Staged{}, err
	}
	id, err := bootID()
	if err != nil {
		return image.Staged{}, err
	}
	return image.FindStaged(ctx, store, digest, id)
}

func bootID() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id)), err
}

// sessionWith is a session of a bundle; nil for one that only undoes.
func sessionWith(ctx context.Context, c config, p place, errOut io.Writer, bundle *image.Bundle) (*session, error) {
	files := hostexec.NewFS(p.root())
	units := hostexec.NewSystemd(files)
	host := hostexec.Host{FS: files, Commands: hostexec.Exec{}, Units: units}
	if p.container {
		host.Commands = noCommands{}
	}
	node, err := steps.DiscoverNode(ctx, host, c.options.Role)
	if err != nil {
		return nil, err
	}
	boot, err := bootID()
	if err != nil {
		return nil, err
	}
	log := newLogger(errOut, c.output)
	var socket string // it does not move while containerd is upgraded
	env := steps.Env{
		Host: host, Bundle: bundle, Node: node, Record: steps.NewRecord(files, c.options.RunID),
		Runtime: func(ctx context.Context) (cri.Client, error) {
			if socket == "" {
				var err error
				if socket, err = steps.ContainerdSocket(ctx, host); err != nil {
					return nil, err
				}
			}
			return cri.Dial(ctx, files, socket)
		},
		Kube: func(context.Context) (kubernetes.Interface, error) {
			return kube.FromFile(files, "/etc/kubernetes/kubelet.conf")
		},
		Admin:   func(context.Context) (kubernetes.Interface, error) { return admin(c, p, files) },
		Probe:   newProbe(),
		Clock:   steps.SystemClock(),
		Log:     slog.New(log),
		Staging: steps.Staging{Upgrader: "/proc/self/exe", BootID: boot},
		Options: c.options,
	}
	if !p.container {
		if env.Program, err = os.Executable(); err != nil {
			return nil, err
		}
	}
	run := steps.Run{ID: c.options.RunID, Node: node, By: askedBy(), Upgrader: ownVersion()}
	if bundle != nil {
		run.Bundle, run.Kubernetes = bundle.Digest, bundle.Manifest.KubernetesVersion
	}
	env.Record.Journal().Describe(run, time.Now)
	return &session{config: c, runner: steps.Runner{Env: env, Plan: steps.Plan(c.options)}, log: log, units: units}, nil
}

// recovery is a session before the node is up: its files alone.
func recovery(files hostexec.FS, output string, errOut io.Writer) (*session, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	log := newLogger(errOut, output)
	env := steps.Env{
		Host: hostexec.Host{FS: files}, Clock: steps.SystemClock(), Log: slog.New(log), Program: program,
	}
	return &session{runner: steps.Runner{Env: env}, log: log}, nil
}

// askedBy is who started this process: the pod, by its own name, or a user of
// the host.
func askedBy() string {
	if by := os.Getenv(askedByEnv); by != "" {
		return by
	}
	if inv, err := steps.ParseInvocation(os.Environ()); err == nil {
		return inv.By
	}
	user := cmp.Or(os.Getenv("SUDO_USER"), os.Getenv("LOGNAME"), os.Getenv("USER"), "root")
	return "user " + user
}

// admin finds credentials that may cordon and evict.
func admin(c config, p place, files hostexec.FS) (kubernetes.Interface, error) {
	const adminConf = "/etc/kubernetes/admin.conf"
	switch {
	case c.kubeconfig != "":
		return kube.FromFile(files, c.kubeconfig)
	case p.container:
		return kube.InCluster()
	case os.Getenv(enteredEnv) != "":
		// A host step of the pod: it has no token, and needs none.
		return nil, steps.ErrAdminElsewhere
	}
	there, err := files.Exists(adminConf)
	if err != nil {
		return nil, err
	}
	if !there {
		return nil, &steps.HintError{
			Err:  errors.New("this node has no credentials that may cordon and evict"),
			Hint: "give an administrator's with --kubeconfig PATH, or use the pod's way (upgrader manifests pod)",
		}
	}
	return kube.FromFile(files, adminConf)
}

// newProbe asks health endpoints of this machine. What they prove is that they
// answer; their certificates are the cluster's own and not checked, as the
// kubelet does not check them.
func newProbe() func(context.Context, string) error {
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // see above
		DisableKeepAlives: true,
	}}
	return func(ctx context.Context, url string) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode < 200 || resp.StatusCode >= 400 {
			body, _ := io.ReadAll(io.LimitReader(resp.Body, 512))
			return fmt.Errorf("%s: %s: %s", url, resp.Status, strings.TrimSpace(string(body)))
		}
		return nil
	}
}

// noCommands is for steps that stay in their container: programs of the host
// could not run there.
type noCommands struct{}

func (noCommands) Run(_ context.Context, c hostexec.Command) (hostexec.Output, error) {
	return hostexec.Output{}, &hostexec.CommandError{Argv: c.Argv, Code: -1, Err: hostexec.ErrNotOnHost}
}
