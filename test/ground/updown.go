package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/node-upgrader/node-upgrader/test/cluster"
	"github.com/node-upgrader/node-upgrader/test/components"
	"github.com/node-upgrader/node-upgrader/test/host"
)

func upCommand(ground *string) *cobra.Command {
	var opts cluster.Options
	var prepare bool
	cmd := &cobra.Command{
		Use:   "up VERSION",
		Short: "Make a cluster: a control plane \"cp\" and, if asked for, a \"worker\"",
		Long: `Make a cluster of a control plane "cp" and, if asked for, a "worker", on which a
small workload runs. VERSION is one of ` + strings.Join(versions(), ", ") + `: it names the versions of all
components. The nodes stay when this command has ended.`,
		Example: `  ground up 1.35
  ground up --workers 1 1.35
  ground up --bare 1.36        # containerd and images, no cluster`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.Set = args[0]
			opts.Progress = cmd.ErrOrStderr()
			if prepare {
				return cluster.Prepare(cmd.Context(), opts)
			}
			return up(cmd, *ground, opts)
		},
	}
	cmd.Flags().IntVar(&opts.Workers, "workers", 0, "how many workers, 0 or 1")
	cmd.Flags().BoolVar(&opts.Bare, "bare", false, "only a host with containerd and images, no cluster")
	cmd.Flags().BoolVar(&prepare, "prepare", false, "only build and cache what is needed, leave nothing running")
	return cmd
}

func versions() []string {
	var names []string
	for _, s := range components.Sets() {
		names = append(names, s.Name)
	}
	return names
}

func up(cmd *cobra.Command, name string, opts cluster.Options) error {
	// Before the ground is there: the first time this takes long.
	if err := cluster.Prepare(cmd.Context(), opts); err != nil {
		return err
	}
	g, err := host.Open(cmd.Context(), host.Options{Name: name, Persist: true, Progress: opts.Progress})
	if err != nil {
		return fmt.Errorf("%w (is it up? see: ground list, ground down)", err)
	}
	c, err := cluster.Up(cmd.Context(), g, opts)
	if err != nil {
		if cmd.Context().Err() != nil { // ctrl-C: nothing stays
			return errors.Join(err, g.Close())
		}
		return fmt.Errorf("%w\nthe nodes are left to be looked at: ground shell cp; ground down", err)
	}
	if opts.Bare {
		return nil
	}
	text, err := c.Kubectl(cmd.Context(), "get", "nodes", "-o", "wide")
	fmt.Fprint(cmd.OutOrStdout(), text)
	return err
}

func downCommand(ground *string) *cobra.Command {
	return &cobra.Command{
		Use:   "down [NODE…]",
		Short: "End nodes and delete their disks; all, and the ground, without a name",
		RunE: func(_ *cobra.Command, args []string) error {
			g, err := host.Attach(*ground)
			if err != nil {
				return err
			}
			if len(args) == 0 {
				return g.Close()
			}
			for _, name := range args {
				h := g.Host(name)
				if h == nil {
					return fmt.Errorf("no node %q on ground %s", name, *ground)
				}
				if err := h.Close(); err != nil {
					return err
				}
			}
			return nil
		},
	}
}
