// Package registry starts a real image registry for tests: the CNCF's
// distribution, with TLS by an authority of its own and a password.
//
//	r, err := registry.Start(ctx, registry.Options{Progress: os.Stderr})
//	defer r.Close()
//	// push to r.Host with --registry-ca r.CA and DOCKER_CONFIG=r.DockerConfig
//	requests, err := r.Requests()
//
// The program is built from its Go module once and kept in the cache, see
// package components.
package registry

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/crypto/bcrypt"

	"github.com/node-upgrader/node-upgrader/test/components"
)

// Options say where the registry runs.
type Options struct {
	// Listen is the address, as 10.0.0.1:5000. By default a free port on
	// loopback; a port has to be given where Prefix is.
	Listen string
	// Hosts are further names and addresses for its certificate.
	Hosts []string
	// Prefix is put before the command, as nsenter --net=/proc/1234/ns/net.
	Prefix []string
	// Dir is where its blobs and files are, made where it is missing; by default a temporary directory,
	// which Close removes.
	Dir      string
	Progress io.Writer // what is built; nil: nowhere
}

// Registry is a registry that runs.
type Registry struct {
	Host     string // address with port, as names of images have it
	CA       string // file with its authority's certificate
	User     string
	Password string
	// DockerConfig is a directory with a config.json that has the password: set
	// DOCKER_CONFIG to it.
	DockerConfig string

	dir       string
	temporary bool
	process   *os.Process
	ended     chan struct{}
	err       error // of the process, when ended
}

// Start starts a registry and returns when it listens. It ends with Close, and
// with this process.
func Start(ctx context.Context, o Options) (*Registry, error) {
	r, err := start(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("start a registry: %w", err)
	}
	return r, nil
}

func start(ctx context.Context, o Options) (_ *Registry, err error) {
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	program, err := components.Registry(ctx, o.Progress)
	if err != nil {
		return nil, err
	}
	r := &Registry{User: "upgrader", Password: "a password: with / and @", dir: o.Dir, ended: make(chan struct{})}
	if r.Host, err = address(ctx, o); err != nil {
		return nil, err
	}
	if r.dir == "" {
		if r.dir, err = os.MkdirTemp("", "upgrader-registry-"); err != nil {
			return nil, err
		}
		r.temporary = true
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.Close())
		}
	}()
	if err := r.configure(o.Hosts); err != nil {
		return nil, err
	}
	started := make(chan error, 1)
	go r.run(append(append([]string{}, o.Prefix...), program, "serve", r.file("config.yml")), started)
	if err := <-started; err != nil {
		return nil, err
	}
	return r, r.wait(ctx)
}

// address finds a free port where none is given.
func address(ctx context.Context, o Options) (string, error) {
	listen := cmp.Or(o.Listen, "127.0.0.1:0")
	host, port, err := net.SplitHostPort(listen)
	if err != nil || port != "0" && port != "" {
		return listen, err
	}
	if len(o.Prefix) > 0 {
		return "", fmt.Errorf("%s: which port is free where %s leads is not known: give one", listen, o.Prefix[0])
	}
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

func (r *Registry) file(name string) string { return filepath.Join(r.dir, name) }

const configuration = `version: 0.1
log: {level: info}
storage:
  filesystem: {rootdirectory: %[1]q}
  delete: {enabled: true}
http:
  addr: %[2]q
  secret: test
  tls: {certificate: %[3]q, key: %[4]q}
auth:
  htpasswd: {realm: test, path: %[5]q}
`

// configure writes everything that the registry and its clients need.
func (r *Registry) configure(hosts []string) error {
	host, _, err := net.SplitHostPort(r.Host)
	if err != nil {
		return err
	}
	r.CA, r.DockerConfig = r.file("ca.crt"), r.file("docker")
	if err := os.MkdirAll(r.DockerConfig, 0o700); err != nil {
		return err
	}
	if err := certificates(r.dir, append([]string{host, "localhost"}, hosts...)); err != nil {
		return err
	}
	hash, err := bcrypt.GenerateFromPassword([]byte(r.Password), bcrypt.MinCost)
	if err != nil {
		return err
	}
	login, err := json.Marshal(map[string]any{"auths": map[string]any{
		r.Host: map[string]string{"auth": base64.StdEncoding.EncodeToString([]byte(r.User + ":" + r.Password))},
	}})
	if err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(r.DockerConfig, "config.json"), login, 0o600),
		os.WriteFile(r.file("htpasswd"), []byte(r.User+":"+string(hash)+"\n"), 0o600),
		os.WriteFile(r.file("config.yml"), fmt.Appendf(nil, configuration,
			r.file("storage"), r.Host, r.file("registry.crt"), r.file("registry.key"), r.file("htpasswd")), 0o600),
	)
}

// run starts the process and waits for it, on one thread: the kernel ends the
// process with the thread that has started it.
func (r *Registry) run(args []string, started chan<- error) {
	runtime.LockOSThread()
	defer close(r.ended)
	out, err := os.OpenFile(r.file("log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		started <- err
		return
	}
	defer out.Close()
	cmd := exec.CommandContext(context.Background(), args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "OTEL_TRACES_EXPORTER=none")
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	err = cmd.Start()
	r.process = cmd.Process
	started <- err
	if err == nil {
		r.err = cmd.Wait()
	}
}

// wait returns when the registry listens.
func (r *Registry) wait(ctx context.Context) error {
	for {
		text, err := os.ReadFile(r.file("log"))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if strings.Contains(string(text), "listening on") {
			return nil
		}
		select {
		case <-r.ended:
			return fmt.Errorf("it ended: %w: %s", r.err, text)
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Close ends the registry and removes what it made in a temporary directory.
func (r *Registry) Close() error {
	if r.process != nil {
		_ = r.process.Kill() // it may have ended
		<-r.ended
		r.process = nil
	}
	if r.temporary {
		return os.RemoveAll(r.dir)
	}
	return nil
}
