package main

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/node-upgrader/node-upgrader/test/host"
)

const defaultGround = "default"

func newCommand() *cobra.Command {
	var name string
	root := &cobra.Command{
		Use:   "ground",
		Short: "Throwaway Kubernetes nodes on this machine",
		Long: `Throwaway Kubernetes nodes on this machine.

A node is systemd in fresh namespaces, with its own disk, on a bridge of its own:
kubeadm, kubelet and containerd run in it as on a real machine. Nodes stay until
"down", which leaves no trace. It needs root. The first "up" builds everything,
which takes a quarter of an hour; the next ones take seconds.`,
		Example: `  ground up 1.35
  ground exec cp -- kubectl get pods -A
  ground down`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.PersistentFlags().StringVar(&name, "ground", defaultGround, "which ground: each has a bridge and nodes of its own")
	root.AddCommand(upCommand(&name), listCommand(), execCommand(&name), shellCommand(&name), copyCommand(&name),
		crashCommand(&name), offCommand(&name), bootCommand(&name), downCommand(&name))
	return root
}

func listCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the nodes of all grounds",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			grounds, err := host.Grounds()
			if err != nil {
				return err
			}
			table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 3, ' ', 0)
			fmt.Fprintln(table, "GROUND\tNODE\tADDRESS\tSTATE\tPID 1\tCONSOLE")
			for _, name := range grounds {
				g, err := host.Attach(name)
				if err != nil {
					return err
				}
				hosts := g.Hosts()
				slices.SortFunc(hosts, func(a, b *host.Host) int { return cmp.Compare(a.Name(), b.Name()) })
				for _, h := range hosts {
					state, pid := "off", "-"
					if h.Running() {
						state, pid = "running", fmt.Sprint(h.PID())
					}
					fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", name, h.Name(), h.IP(), state, pid, h.ConsoleLog())
				}
			}
			return table.Flush()
		},
	}
}

func execCommand(ground *string) *cobra.Command {
	return &cobra.Command{
		Use:   "exec NODE -- COMMAND [ARGUMENT…]",
		Short: "Run a command on a node, as root, with KUBECONFIG set",
		Long: `Run a command on a node, as root, in all of the node's namespaces and in a cgroup
of its own there. Input, output and exit code are the command's.`,
		Example: "  ground exec cp -- kubectl get nodes",
		Args:    cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return enter(cmd, *ground, args[0], args[1:])
		},
	}
}

func shellCommand(ground *string) *cobra.Command {
	return &cobra.Command{
		Use:   "shell NODE",
		Short: "Open a shell on a node",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return enter(cmd, *ground, args[0], []string{"bash", "-l"})
		},
	}
}

func enter(cmd *cobra.Command, ground, node string, args []string) error {
	h, err := find(ground, node)
	if err != nil {
		return err
	}
	res, err := h.Exec(cmd.Context(), host.Cmd{
		Args: args, Terminal: true,
		Stdin: cmd.InOrStdin(), Stdout: cmd.OutOrStdout(), Stderr: cmd.ErrOrStderr(),
	})
	if exit := (*host.ExitError)(nil); errors.As(err, &exit) {
		return &passedOn{res.Code}
	}
	return err
}

func copyCommand(ground *string) *cobra.Command {
	return &cobra.Command{
		Use:     "copy SOURCE NODE:DESTINATION",
		Short:   "Copy a file or directory of this machine to a node",
		Long:    "Copy a file or directory of this machine to a node. DESTINATION is the copy's own\npath; with a slash at its end, the directory to put it in.",
		Example: "  ground copy ./upgrader cp:/usr/local/bin/",
		Args:    cobra.ExactArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			node, to, ok := strings.Cut(args[1], ":")
			if !ok || !strings.HasPrefix(to, "/") {
				return fmt.Errorf("copy: %q is not NODE:/DESTINATION", args[1])
			}
			if strings.HasSuffix(to, "/") {
				to += path.Base(args[0])
			}
			h, err := find(*ground, node)
			if err != nil {
				return err
			}
			return h.CopyIn(args[0], to)
		},
	}
}

func crashCommand(ground *string) *cobra.Command {
	return &cobra.Command{
		Use:   "crash NODE",
		Short: "Kill everything on a node at once; its disk stays",
		Args:  cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			h, err := find(*ground, args[0])
			if err != nil {
				return err
			}
			return h.Crash()
		},
	}
}

func offCommand(ground *string) *cobra.Command {
	return &cobra.Command{
		Use:   "off NODE",
		Short: "Power a node off in good order",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			h, err := find(*ground, args[0])
			if err != nil {
				return err
			}
			return h.PowerOff(cmd.Context())
		},
	}
}

func bootCommand(ground *string) *cobra.Command {
	return &cobra.Command{
		Use:   "boot NODE",
		Short: "Boot a node that is off, on its own disk",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			h, err := find(*ground, args[0])
			if err != nil {
				return err
			}
			return h.Boot(cmd.Context())
		},
	}
}

// find finds a node by name.
func find(ground, node string) (*host.Host, error) {
	g, err := host.Attach(ground)
	if err != nil {
		return nil, fmt.Errorf("%w (make one: ground up 1.35)", err)
	}
	h := g.Host(node)
	if h == nil {
		return nil, fmt.Errorf("no node %q on ground %s (see: ground list)", node, ground)
	}
	return h, nil
}
