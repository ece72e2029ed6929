package skeleton

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

// ErrExit is a Watch's answer that makes a command exit with code 1 before it
// has done anything.
var ErrExit = errors.New("exit status 1")

// What a Watch is told of beside the host's own changes.
const (
	OpAsk     = "ask"     // a command that only tells something: it may fail or hang as well
	OpKubeadm = "kubeadm" // a change that kubeadm makes, of a file or of the cluster
	OpPatch   = "patch"   // of the Node
	OpEvict   = "evict"   // of a pod
)

// patience is how long kubeadm waits before it gives up by itself.
const patience = 5 * time.Minute

// commands are the node's programs.
type commands struct{ n *Node }

func (c commands) Run(ctx context.Context, cmd hostexec.Command) (out hostexec.Output, err error) {
	failed := func(code int, text string, err error) error {
		return &hostexec.CommandError{Argv: cmd.Argv, Code: code, Stderr: text, Err: err}
	}
	if ctx.Err() != nil {
		return out, failed(-1, "", context.Cause(ctx))
	}
	op := OpAsk
	if cmd.Changes {
		op = hostexec.OpRun
	}
	err = c.n.effect(hostexec.Effect{Op: op, Object: strings.ReplaceAll(strings.Join(cmd.Argv, " "), c.n.dir, "")}, func(err error) error {
		switch {
		case errors.Is(err, ErrHang) && cmd.Uninterruptible:
			time.Sleep(patience)
			return failed(1, "timed out", ErrExit)
		case errors.Is(err, ErrHang):
			<-ctx.Done()
			return failed(-1, "", fmt.Errorf("signal: terminated (%w)", context.Cause(ctx)))
		}
		return failed(1, "", err)
	}, func() error {
		file, err := c.n.at(cmd.Argv[0])
		if err != nil {
			return failed(-1, "", err)
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return failed(-1, "", err)
		}
		said, err := c.program(string(text), cmd)
		out.Stdout = []byte(said)
		if cmd.Line != nil {
			for line := range strings.Lines(said) {
				cmd.Line(strings.TrimSpace(line))
			}
		}
		var command *hostexec.CommandError
		if err != nil && !errors.As(err, &command) {
			return failed(1, err.Error(), ErrExit)
		}
		return err
	})
	return out, err
}

// program is what a program of this text does.
func (c commands) program(text string, cmd hostexec.Command) (string, error) {
	args := strings.Join(cmd.Argv[1:], " ")
	name, version, _ := strings.Cut(text, " ")
	switch {
	case name == "containerd" && args == "--version":
		return "containerd github.com/containerd/containerd v" + version + " 0000\n", nil
	case name == "containerd" && strings.HasSuffix(args, "config dump"):
		return configDump(version), nil
	case name == "kubelet" && args == "--version":
		return "Kubernetes " + version + "\n", nil
	case name == "kubelet" && strings.Contains(strings.Join(cmd.Env, " "), "WATCHDOG_USEC=trial"):
		return "", errors.New(`"command failed" err="failed to run Kubelet: create health checker: configure watchdog: error converting WATCHDOG_USEC"`)
	case name == "kubeadm" && args == "version --output=short":
		return version + "\n", nil
	case name == "kubeadm" && strings.HasPrefix(args, "config images list "):
		return imageOf("kube-proxy", version) + "\n" + imageOf("kube-apiserver", version) + "\n", nil
	case name == "kubeadm" && strings.HasPrefix(args, "upgrade "):
		return "[upgrade] done\n", kubeadm{c.n, version}.upgrade(cmd.Argv[2])
	case name == "CNI" && args == "":
		return text + "\n", nil
	}
	return "", fmt.Errorf("skeleton: unexpected command: %s (%s)", strings.Join(cmd.Argv, " "), text)
}

// configDump is what a version of containerd makes of the node's configuration.
func configDump(version string) string {
	plugin, dirs := "io.containerd.grpc.v1.cri", `bin_dir = "/opt/cni/bin"`
	if !strings.HasPrefix(version, "1.") {
		plugin, dirs = "io.containerd.cri.v1.runtime", `bin_dirs = ["/opt/cni/bin"]`
	}
	return strings.NewReplacer("PLUGIN", plugin, "DIRS", dirs).Replace(`
[plugins."PLUGIN".containerd]
default_runtime_name = "runc"
[plugins."PLUGIN".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."PLUGIN".containerd.runtimes.runc.options]
SystemdCgroup = true
[plugins."PLUGIN".cni]
DIRS
`)
}
