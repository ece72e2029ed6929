package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/node-upgrader/node-upgrader/steps"
)

// config is what the flags say, checked; nothing changes it afterwards.
type config struct {
	bundle     string // a directory on this side of Enter; "": found
	kubeconfig string
	output     string
	options    steps.Options
}

// flags are the flags of a command that looks at or works on the node.
type flags struct {
	config
	role               string
	onFailure          string
	certificateRenewal bool
	etcdUpgrade        bool
	gracePeriod        int
	skipWait           int
}

var validRunID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

// bind adds the flags that every command of the node has. A step has those of
// the others too: copy looks at all of them before anything is changed, and the
// kubelet's judges a node drained by what the drain was asked to leave.
func (f *flags) bind(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringVar(&f.bundle, "bundle", "", "directory of the bundle; by default /bundle of the image, or the one this program was staged with")
	fs.StringVarP(&f.output, "output", "o", "text", "text or json: how logs (stderr) and data (stdout) are written")
	fs.StringVar(&f.options.RunID, "run-id", "", "name of this run, an orchestrator's upgrade id; by default made from the bundle's digest")
	f.bindRun(fs)
	fs.StringVar(&f.role, "role", "", "control-plane or worker; by default found out, and a contradiction is an error")
	fs.BoolVar(&f.options.DrainFirst, "drain-first", false, "drain before containerd is restarted, not only before the kubelet")
	fs.StringVar(&f.kubeconfig, "kubeconfig", "", "credentials for cordon and drain; by default the pod's service account, or a control plane's /etc/kubernetes/admin.conf")
	f.options.Drain = steps.DefaultDrain()
	f.bindKubeadm(fs)
	f.bindDrain(fs)
}

func (f *flags) bindRun(fs *pflag.FlagSet) {
	fs.StringVar(&f.onFailure, "on-failure", string(steps.RollBack), "what follows when a step fails after its first change: rollback, or stop to leave all as it is")
	fs.IntVar(&f.options.KeepRuns, "keep-runs", steps.DefaultKeepRuns, "ended runs whose records and backups are kept")
	fs.StringVar(&f.options.RequireSignature, "require-signature", "", "path on the host of the public key or certificate that must have signed the bundle; "+steps.PolicyKeys+" is demanded where it exists")
	bindDeadMan(fs, &f.options)
}

func bindDeadMan(fs *pflag.FlagSet, o *steps.Options) {
	fs.DurationVar(&o.DeadMan, "dead-man-after", steps.DefaultDeadMan, "time after which a swap of containerd or the kubelet that was not proven healthy is put back, whatever became of the upgrader")
}

func (f *flags) bindKubeadm(fs *pflag.FlagSet) {
	k := &f.options.Kubeadm
	fs.StringVar(&k.Config, "config", "", "kubeadm: path on the host of an UpgradeConfiguration; excludes the three flags of kubeadm that follow")
	fs.StringVar(&k.Patches, "patches", "", "kubeadm: directory on the host with patches; kubeadm does not remember them")
	fs.BoolVar(&f.certificateRenewal, "certificate-renewal", true, "kubeadm: renew the certificates of the control plane")
	fs.BoolVar(&f.etcdUpgrade, "etcd-upgrade", true, "kubeadm: upgrade etcd")
	fs.StringSliceVar(&k.IgnorePreflightErrors, "ignore-preflight-errors", nil, "kubeadm: checks whose errors are shown as warnings")
}

func (f *flags) bindDrain(fs *pflag.FlagSet) {
	d := &f.options.Drain
	fs.BoolVar(&d.DeleteEmptyDirData, "delete-emptydir-data", d.DeleteEmptyDirData, "drain: go on even if there are pods using emptyDir")
	fs.BoolVar(&d.Force, "force", d.Force, "drain: also evict pods that no controller would make again")
	fs.BoolVar(&d.IgnoreDaemonSets, "ignore-daemonsets", d.IgnoreDaemonSets, "drain: leave the pods of DaemonSets")
	fs.BoolVar(&d.DisableEviction, "disable-eviction", d.DisableEviction, "drain: delete pods instead of evicting them, past every PodDisruptionBudget")
	fs.IntVar(&f.gracePeriod, "grace-period", -1, "drain: seconds a pod is given to end; negative: its own")
	fs.DurationVar(&d.Timeout, "timeout", d.Timeout, "drain: time to wait before giving up")
	fs.StringVar(&d.PodSelector, "pod-selector", "", "drain: only these pods")
	fs.IntVar(&f.skipWait, "skip-wait-for-delete-timeout", 0, "drain: do not wait for pods whose deletion is older than this many seconds")
}

// validate checks what the flags say.
func (f *flags) validate(cmd *cobra.Command) (config, error) {
	c := f.config
	switch c.output {
	case "text", "json":
	default:
		return c, &steps.UsageError{Reason: fmt.Sprintf("--output %q: want text or json", c.output)}
	}
	switch steps.Role(f.role) {
	case "", steps.ControlPlane, steps.Worker:
		c.options.Role = steps.Role(f.role)
	default:
		return c, &steps.UsageError{Reason: fmt.Sprintf("--role %q: want %s or %s", f.role, steps.ControlPlane, steps.Worker)}
	}
	switch c.options.OnFailure = steps.OnFailure(f.onFailure); c.options.OnFailure {
	case steps.RollBack, steps.Stop:
	default:
		return c, &steps.UsageError{Reason: fmt.Sprintf("--on-failure %q: want %s or %s", f.onFailure, steps.RollBack, steps.Stop)}
	}
	if c.options.KeepRuns < 1 {
		return c, &steps.UsageError{Reason: fmt.Sprintf("--keep-runs %d: the last run's backups are kept in any case: want 1 or more", c.options.KeepRuns)}
	}
	if err := validateDeadMan(c.options.DeadMan); err != nil {
		return c, err
	}
	if id := c.options.RunID; id != "" && !validRunID.MatchString(id) {
		return c, &steps.UsageError{Reason: fmt.Sprintf("--run-id %q: want at most 63 letters, digits, '.', '_' and '-', the first a letter or a digit", id)}
	}
	if c.options.Drain.Timeout <= 0 {
		return c, &steps.UsageError{Reason: fmt.Sprintf("--timeout %s: a drain needs a deadline", c.options.Drain.Timeout)}
	}
	if cmd.Flags().Changed("certificate-renewal") {
		c.options.Kubeadm.CertificateRenewal = &f.certificateRenewal
	}
	if cmd.Flags().Changed("etcd-upgrade") {
		c.options.Kubeadm.EtcdUpgrade = &f.etcdUpgrade
	}
	if err := c.options.Kubeadm.Validate(); err != nil {
		return c, err
	}
	for _, flag := range given(cmd) {
		if strings.ContainsAny(flag, "$;") { // systemd would change it in the unit's command line
			return c, &steps.UsageError{Reason: fmt.Sprintf("%s: no '$' and no ';' can be passed on to the unit that does the work; rename what it names", flag)}
		}
	}
	c.options.Drain.GracePeriod = time.Duration(f.gracePeriod) * time.Second
	c.options.Drain.SkipWaitForDelete = time.Duration(f.skipWait) * time.Second
	if key := c.options.RequireSignature; cmd.Flags().Changed("require-signature") && !strings.HasPrefix(key, "/") {
		return c, &steps.UsageError{Reason: fmt.Sprintf("--require-signature %q: give the absolute path on the node", key)}
	}
	if c.kubeconfig != "" && !strings.HasPrefix(c.kubeconfig, "/") {
		return c, &steps.UsageError{Reason: fmt.Sprintf("--kubeconfig %s: give the absolute path on the node", c.kubeconfig)}
	}
	return c, nil
}

// validateDeadMan: the switch must not be faster than a stop of a service and the
// start of another.
func validateDeadMan(d time.Duration) error {
	if d < 10*time.Second {
		return &steps.UsageError{Reason: fmt.Sprintf("--dead-man-after %s: a service needs at least 10s to be swapped", d)}
	}
	return nil
}

// given are the flags that say what is done, as given, in a form that can be
// given again: all but the bundle's place and the output.
func given(cmd *cobra.Command) []string {
	var list []string
	cmd.Flags().Visit(func(flag *pflag.Flag) {
		if flag.Name == "bundle" || flag.Name == "output" {
			return
		}
		value := flag.Value.String()
		if items, ok := flag.Value.(pflag.SliceValue); ok {
			value = strings.Join(items.GetSlice(), ",")
		}
		list = append(list, "--"+flag.Name+"="+value)
	})
	return list
}

// environment variables by which the program speaks to itself across Enter.
const (
	bundleFD      = "UPGRADER_BUNDLE_FD"
	terminationFD = "UPGRADER_TERMINATION_FD"
	enteredEnv    = "UPGRADER_ENTERED"
	askedByEnv    = "UPGRADER_ASKED_BY" // the pod that this process is of; set by the manifests
)

// fdPath is the path of an inherited descriptor, named by an environment
// variable; "" when there is none. Other processes of the host can use it.
func fdPath(variable string) string {
	if fd := os.Getenv(variable); fd != "" {
		return fmt.Sprintf("/proc/%d/fd/%s", os.Getpid(), fd)
	}
	return ""
}
