// Command demo shows the main job: a throwaway node goes from Kubernetes 1.35
// with containerd 1.7 to Kubernetes 1.36 with containerd 2.x, in place, by the
// upgrader's pod or (--by-hand) by the program on the node.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/node-upgrader/node-upgrader/test/cluster"
	"github.com/node-upgrader/node-upgrader/test/host"
	"github.com/node-upgrader/node-upgrader/test/payload"
)

const (
	from, to = "1.35", "1.36"
	podName  = "upgrader-cp"
)

func main() {
	host.Reexec()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var byHand bool
	cmd := &cobra.Command{
		Use: "demo", Short: "Upgrade a throwaway node and show it", Args: cobra.NoArgs, SilenceUsage: true,
		RunE: func(cmd *cobra.Command, _ []string) error { return demo(cmd.Context(), byHand) },
	}
	cmd.Flags().BoolVar(&byHand, "by-hand", false, "run the program on the node instead of its pod")
	if err := cmd.ExecuteContext(ctx); err != nil {
		os.Exit(1)
	}
}

func say(format string, args ...any) { fmt.Printf("\n== "+format+"\n", args...) }

func demo(ctx context.Context, byHand bool) (err error) {
	say("Building what is needed (cached; the first time takes about 20 minutes)")
	opts := cluster.Options{Set: from, Progress: os.Stdout}
	if err := cluster.Prepare(ctx, opts); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "upgrader-demo-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	p, err := payload.Make(ctx, to, dir, os.Stdout)
	if err != nil {
		return err
	}
	say("Starting a throwaway node with Kubernetes %s", from)
	g, err := host.Open(ctx, host.Options{Progress: os.Stdout})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.Close()) }()
	c, err := cluster.Up(ctx, g, opts)
	if err != nil {
		return err
	}
	node := c.ControlPlane
	if err := p.ImportImages(ctx, node); err != nil {
		return err
	}
	before, err := versions(ctx, node)
	if err != nil {
		return err
	}
	say("Upgrading it in place, to Kubernetes %s", to)
	start := time.Now()
	if byHand {
		err = hand(ctx, node, p)
	} else {
		err = pod(ctx, c, p)
	}
	if err != nil {
		return err
	}
	took := time.Since(start)
	if err := c.Wait(ctx); err != nil {
		return err
	}
	say("Every pod of the node")
	if err := stream(ctx, node, os.Stdout, "kubectl", "get", "pods", "-A", "-o", "wide"); err != nil {
		return err
	}
	after, err := versions(ctx, node)
	if err != nil {
		return err
	}
	say("The node before and after")
	t := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	for i := range before {
		fmt.Fprintf(t, "%s\t%s\t->\t%s\n", before[i].name, before[i].version, after[i].version)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	say("Time of each step (%.0f s in all)", took.Seconds())
	return stream(ctx, node, os.Stdout, "sh", "-c", "/var/lib/upgrader/bundles/*/upgrader status | sed -n '/^run/,$p'")
}

func hand(ctx context.Context, node host.Machine, p payload.Payload) error {
	if err := p.CopyTo(node); err != nil {
		return err
	}
	for _, command := range []string{"plan", "run"} {
		fmt.Printf("\n# upgrader %s --ignore-preflight-errors=SystemVerification\n", command)
		if err := stream(ctx, node, os.Stdout, payload.NodeUpgrader, command, "--ignore-preflight-errors=SystemVerification"); err != nil {
			return err
		}
	}
	return nil
}

func pod(ctx context.Context, c *cluster.Cluster, p payload.Payload) error {
	node := c.ControlPlane
	if err := p.ImportSelf(ctx, node); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"manifests", "rbac"},
		{"manifests", "pod", "--node", node.Name(), "--image", p.Ref, "--image-pull-policy=Never", "--ignore-preflight-errors=SystemVerification"},
	} {
		fmt.Printf("# upgrader %s | kubectl apply -f -\n", strings.Join(args, " "))
		yaml, err := exec.CommandContext(ctx, p.Upgrader, args...).Output()
		if err != nil {
			return fmt.Errorf("upgrader %s: %w", strings.Join(args, " "), err)
		}
		if _, err := node.Exec(ctx, host.Cmd{Args: []string{"kubectl", "apply", "-f", "-"}, Stdin: strings.NewReader(string(yaml)), Stdout: os.Stdout}); err != nil {
			return err
		}
	}
	return follow(ctx, node)
}

// follow prints the pod's logs from the node's own files, since the API server
// goes away for a while, until the pod has ended.
func follow(ctx context.Context, node host.Machine) error {
	seen := map[string]int{}
	for ctx.Err() == nil {
		// The phase first: what the logs hold afterwards is all of them.
		phase, _ := node.Exec(ctx, host.Command("kubectl", "--request-timeout=3s", "-n", "node-upgrader", "get", "pod", podName, "-o", "jsonpath={.status.phase}"))
		files, err := node.Exec(ctx, host.Command("sh", "-c", "ls -tr /var/log/pods/node-upgrader_"+podName+"_*/*/*.log 2>/dev/null || true"))
		if err != nil {
			return err
		}
		for _, file := range strings.Fields(files.Stdout) {
			data, err := node.ReadFile(file)
			if err != nil {
				return err
			}
			for line := range strings.Lines(string(data[seen[file]:])) {
				if !strings.HasSuffix(line, "\n") {
					break
				}
				seen[file] += len(line)
				// time, stream, flag, text
				if parts := strings.SplitN(line, " ", 4); len(parts) == 4 {
					fmt.Printf("%-12s %s", path.Base(path.Dir(file)), parts[3])
				}
			}
		}
		switch phase.Stdout {
		case "Succeeded":
			return nil
		case "Failed":
			return errors.New("the pod failed")
		}
		select {
		case <-ctx.Done():
		case <-time.After(500 * time.Millisecond):
		}
	}
	return ctx.Err()
}

func stream(ctx context.Context, node host.Machine, w io.Writer, args ...string) error {
	_, err := node.Exec(ctx, host.Cmd{Args: args, Stdout: w, Stderr: w})
	return err
}

type version struct{ name, version string }

// versions are what runs on the node.
func versions(ctx context.Context, node host.Machine) ([]version, error) {
	var list []version
	for _, v := range []struct{ name, command string }{
		{"kubelet", "kubectl get node cp -o jsonpath={.status.nodeInfo.kubeletVersion}"},
		{"containerd", "kubectl get node cp -o jsonpath={.status.nodeInfo.containerRuntimeVersion}"},
		{"runc", "runc --version | sed -n 's/runc version //p'"},
		{"CNI plugins", "/opt/cni/bin/bridge 2>&1 | sed -n 's/CNI bridge plugin //p'"},
		{"kubeadm", "kubeadm version -o short"},
		{"kube-apiserver", "kubectl version | sed -n 's/Server Version: //p'"},
		{"etcd", "kubectl -n kube-system get pod etcd-cp -o jsonpath={.spec.containers[0].image}"},
		{"kubectl", "kubectl version --client | sed -n 's/Client Version: //p'"},
	} {
		r, err := node.Exec(ctx, host.Command("sh", "-c", v.command))
		if err != nil {
			return nil, err
		}
		list = append(list, version{v.name, strings.TrimSpace(r.Stdout)})
	}
	return list, nil
}
