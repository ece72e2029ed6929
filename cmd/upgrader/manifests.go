package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/node-upgrader/node-upgrader/manifests"
	"github.com/node-upgrader/node-upgrader/steps"
)

func newManifests() *cobra.Command {
	cmd := &cobra.Command{
		Use: "manifests", GroupID: "make", Short: "Print the YAML that an orchestrator applies",
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newManifestsPod(), newManifestsJob(), newManifestsRBAC(), newManifestsImages())
	return cmd
}

func newManifestsPod() *cobra.Command {
	return newManifest("pod", "Print the pod that upgrades one node", func(o manifests.PodOptions) (runtime.Object, error) {
		return manifests.Pod(o)
	})
}

func newManifestsJob() *cobra.Command {
	return newManifest("job", "Print a Job of that pod, which replaces a pod that was deleted", func(o manifests.PodOptions) (runtime.Object, error) {
		return manifests.Job(o)
	})
}

// newManifest is the command that prints one object made from PodOptions.
func newManifest(kind, short string, make func(manifests.PodOptions) (runtime.Object, error)) *cobra.Command {
	var o manifests.PodOptions
	var f flags // of the steps, passed on to the containers
	cmd := &cobra.Command{Use: kind + " --node NAME --image IMAGE", Short: short}
	fs := cmd.Flags()
	fs.StringVar(&o.Node, "node", "", "name of the node to upgrade")
	fs.StringVar(&o.Image, "image", "", "the upgrader's image, best by digest (name@sha256:…)")
	fs.StringVar(&o.Namespace, "namespace", manifests.DefaultNamespace, "namespace of the pod")
	fs.StringVar(&o.Name, "name", "", "name of the pod; by default upgrader-NODE")
	fs.StringVar(&o.RunID, "run-id", "", "name of this run, an orchestrator's upgrade id")
	fs.StringSliceVar(&o.Steps, "steps", nil, "steps to run, in order; by default all")
	fs.BoolVar(&o.DrainFirst, "drain-first", false, "drain before containerd is restarted, not only before the kubelet")
	fs.StringVar((*string)(&o.ImagePullPolicy), "image-pull-policy", "", "Always, IfNotPresent or Never")
	fs.StringSliceVar(&o.ImagePullSecrets, "image-pull-secrets", nil, "names of secrets to pull the image with")
	f.options.Drain = steps.DefaultDrain()
	f.bindRun(fs)
	f.bindKubeadm(fs)
	f.bindDrain(fs)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		f.output = "text"
		c, err := f.validate(cmd)
		if err != nil {
			return err
		}
		o.Kubeadm = manifests.KubeadmOptions(c.options.Kubeadm)
		if anyChanged(cmd, "delete-emptydir-data", "force", "ignore-daemonsets", "disable-eviction", "grace-period", "timeout", "pod-selector", "skip-wait-for-delete-timeout") {
			drain := manifests.DrainOptions(c.options.Drain)
			o.Drain = &drain
		}
		o.Run = runOptions(cmd, c.options)
		object, err := make(o)
		return printManifests(cmd, err, object)
	}
	return cmd
}

// runOptions are those that were given: the others are the program's own.
func runOptions(cmd *cobra.Command, c steps.Options) manifests.RunOptions {
	var o manifests.RunOptions
	o.RequireSignature = c.RequireSignature
	if cmd.Flags().Changed("on-failure") {
		o.OnFailure = string(c.OnFailure)
	}
	if cmd.Flags().Changed("keep-runs") {
		o.KeepRuns = c.KeepRuns
	}
	if cmd.Flags().Changed("dead-man-after") {
		o.DeadManAfter = c.DeadMan
	}
	return o
}

func anyChanged(cmd *cobra.Command, flags ...string) bool {
	for _, name := range flags {
		if cmd.Flags().Changed(name) {
			return true
		}
	}
	return false
}

func newManifestsRBAC() *cobra.Command {
	var o manifests.RBACOptions
	cmd := &cobra.Command{Use: "rbac", Short: "Print the namespace, the service account and its rights"}
	cmd.Flags().StringVar(&o.Namespace, "namespace", manifests.DefaultNamespace, "namespace of the pods")
	cmd.Flags().BoolVar(&o.DisableEviction, "disable-eviction", false, "also the right to delete pods, for drain --disable-eviction")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		objects, err := manifests.RBAC(o)
		return printManifests(cmd, err, objects...)
	}
	return cmd
}

func printManifests(cmd *cobra.Command, err error, objects ...runtime.Object) error {
	var option *manifests.OptionError
	if errors.As(err, &option) {
		return &steps.UsageError{Reason: fmt.Sprintf("%v (see %s --help)", err, cmd.CommandPath())}
	}
	if err != nil {
		return err
	}
	data, err := manifests.Render(objects...)
	if err != nil {
		return err
	}
	_, err = cmd.OutOrStdout().Write(data)
	return err
}
