package steps

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

// The two ways to upgrade a node by kubeadm: the first control plane of a
// cluster applies a version, every other node follows it.
const (
	modeApply = "apply"
	modeNode  = "node"
)

// Validate refuses flags that kubeadm does not take together, as kubeadm would
// after the node was changed already. The error is a *UsageError.
func (o KubeadmOptions) Validate() error {
	if o.Config != "" {
		var mixed []string
		for _, f := range []struct {
			name string
			set  bool
		}{
			{"--certificate-renewal", o.CertificateRenewal != nil},
			{"--etcd-upgrade", o.EtcdUpgrade != nil},
			{"--patches", o.Patches != ""},
		} {
			if f.set {
				mixed = append(mixed, f.name)
			}
		}
		if len(mixed) > 0 {
			return &UsageError{"kubeadm does not take --config together with " + strings.Join(mixed, ", ") + ": say it in the UpgradeConfiguration"}
		}
	}
	if slices.ContainsFunc(o.IgnorePreflightErrors, isAll) && len(o.IgnorePreflightErrors) > 1 {
		return &UsageError{"--ignore-preflight-errors: kubeadm takes no other check beside all"}
	}
	for flag, p := range map[string]string{"--config": o.Config, "--patches": o.Patches} {
		if p != "" && !strings.HasPrefix(p, "/") {
			return &UsageError{fmt.Sprintf("%s %s: give the absolute path on the node", flag, p)}
		}
	}
	return nil
}

func isAll(check string) bool { return strings.EqualFold(check, "all") }

// blocks are Validate's error and the files that are not there.
func (o KubeadmOptions) blocks(fs hostexec.FS) ([]Block, error) {
	var blocks []Block
	if err := o.Validate(); err != nil {
		blocks = append(blocks, Block{Reason: err.Error(), Hint: "kubeadm upgrade apply --help"})
	}
	for _, f := range []struct{ flag, path string }{{"--config", o.Config}, {"--patches", o.Patches}} {
		if !strings.HasPrefix(f.path, "/") {
			continue
		}
		there, err := fs.Exists(f.path)
		if err != nil {
			return nil, err
		}
		if !there {
			blocks = append(blocks, Block{Reason: fmt.Sprintf("%s %s is not there", f.flag, f.path), Hint: "put it on the node: it is read there, not in the pod"})
			continue
		}
		if f.flag == "--config" {
			dry, err := dryRun(fs, f.path)
			if err != nil {
				return nil, err
			}
			if dry {
				blocks = append(blocks, Block{
					Reason: f.path + " sets dryRun: kubeadm would upgrade nothing, and succeed",
					Hint:   "take dryRun out of the UpgradeConfiguration; `upgrader plan` shows what would be done",
				})
			}
		}
	}
	return blocks, nil
}

// dryRun tells whether an UpgradeConfiguration asks kubeadm to change nothing.
// What kubeadm cannot read is kubeadm's to refuse.
func dryRun(fs hostexec.FS, file string) (bool, error) {
	data, err := fs.ReadFile(file)
	if err != nil {
		return false, err
	}
	for document := range strings.SplitSeq("\n"+string(data), "\n---") {
		var c struct {
			Apply, Node struct {
				DryRun bool `json:"dryRun"`
			}
		}
		if yaml.Unmarshal([]byte(document), &c) == nil && (c.Apply.DryRun || c.Node.DryRun) {
			return true, nil
		}
	}
	return false, nil
}

// command is kubeadm's command line. ignore are checks beside the user's.
func (o KubeadmOptions) command(binary, mode, version string, ignore ...string) []string {
	argv := []string{binary, "upgrade", mode}
	if mode == modeApply {
		argv = append(argv, version, "--yes")
	}
	if o.Config != "" {
		argv = append(argv, "--config="+o.Config)
	}
	if o.CertificateRenewal != nil {
		argv = append(argv, fmt.Sprintf("--certificate-renewal=%t", *o.CertificateRenewal))
	}
	if o.EtcdUpgrade != nil {
		argv = append(argv, fmt.Sprintf("--etcd-upgrade=%t", *o.EtcdUpgrade))
	}
	if o.Patches != "" {
		argv = append(argv, "--patches="+o.Patches)
	}
	checks := slices.Clone(o.IgnorePreflightErrors)
	if !slices.ContainsFunc(checks, isAll) {
		for _, c := range ignore {
			if !slices.ContainsFunc(checks, func(have string) bool { return strings.EqualFold(have, c) }) {
				checks = append(checks, c)
			}
		}
	}
	if len(checks) > 0 {
		argv = append(argv, "--ignore-preflight-errors="+strings.Join(checks, ","))
	}
	return argv
}

// ignorable are the preflight checks that cannot hold for a reason of our own:
// `kubeadm upgrade apply` wants to run a Job, and on a cordoned node of a small
// cluster it may have nowhere to run. A configuration file is the user's whole
// word: nothing is added to it.
func ignorable(ctx context.Context, env Env, mode string) []string {
	if mode != modeApply || env.Options.Kubeadm.Config != "" {
		return nil
	}
	client, _, err := reachAPI(ctx, env, apiLook)
	if err != nil {
		return nil
	}
	node, err := getNode(ctx, client, env.Node.Name)
	if err != nil || !node.Spec.Unschedulable {
		return nil
	}
	env.Log.Warn("the node is cordoned: leaving kubeadm's check CreateJob out")
	return []string{"CreateJob"}
}
