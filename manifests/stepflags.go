package manifests

import (
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"
)

// KubeadmOptions are the kubeadm step's, as `kubeadm upgrade` spells them. The
// fields are those of the step itself, so that one converts into the other.
// Paths are the host's.
type KubeadmOptions struct {
	Config                string   // --config
	Patches               string   // --patches
	CertificateRenewal    *bool    // --certificate-renewal; nil: kubeadm's default
	EtcdUpgrade           *bool    // --etcd-upgrade; nil: kubeadm's default
	IgnorePreflightErrors []string // --ignore-preflight-errors
}

func (o KubeadmOptions) args() []string {
	var args []string
	if o.Config != "" {
		args = append(args, "--config="+o.Config)
	}
	if o.Patches != "" {
		args = append(args, "--patches="+o.Patches)
	}
	if o.CertificateRenewal != nil {
		args = append(args, "--certificate-renewal="+strconv.FormatBool(*o.CertificateRenewal))
	}
	if o.EtcdUpgrade != nil {
		args = append(args, "--etcd-upgrade="+strconv.FormatBool(*o.EtcdUpgrade))
	}
	if len(o.IgnorePreflightErrors) > 0 {
		args = append(args, "--ignore-preflight-errors="+strings.Join(o.IgnorePreflightErrors, ","))
	}
	return args
}

// validate finds what kubeadm itself would refuse only after the pod has been
// started and containerd replaced.
func (o KubeadmOptions) validate() error {
	var errs []error
	for _, p := range []struct{ flag, path string }{{"--config", o.Config}, {"--patches", o.Patches}} {
		if p.path != "" && !path.IsAbs(p.path) {
			errs = append(errs, &OptionError{p.flag, fmt.Sprintf("%q is no absolute path on the host", p.path)})
		}
	}
	if o.Config != "" && (o.Patches != "" || o.CertificateRenewal != nil || o.EtcdUpgrade != nil) {
		errs = append(errs, &OptionError{
			"--config",
			"kubeadm does not mix it with --patches, --certificate-renewal or --etcd-upgrade; " +
				"put them into the UpgradeConfiguration",
		})
	}
	return errors.Join(errs...)
}

// RunOptions say what becomes of a run's failures and records. The zero value is
// the program's defaults.
type RunOptions struct {
	OnFailure    string        // --on-failure: rollback or stop
	KeepRuns     int           // --keep-runs
	DeadManAfter time.Duration // --dead-man-after
	// RequireSignature is the path on the host of the public key that must have
	// signed the bundle. The containers that change nothing demand it too.
	RequireSignature string // --require-signature
}

func (o RunOptions) args() []string {
	var args []string
	if o.OnFailure != "" {
		args = append(args, "--on-failure="+o.OnFailure)
	}
	if o.KeepRuns > 0 {
		args = append(args, "--keep-runs="+strconv.Itoa(o.KeepRuns))
	}
	if o.DeadManAfter > 0 {
		args = append(args, "--dead-man-after="+o.DeadManAfter.String())
	}
	return args
}

func (o RunOptions) validate() error {
	var errs []error
	if o.OnFailure != "" && o.OnFailure != "rollback" && o.OnFailure != "stop" {
		errs = append(errs, &OptionError{"--on-failure", fmt.Sprintf("%q is neither rollback nor stop", o.OnFailure)})
	}
	if o.KeepRuns < 0 {
		errs = append(errs, &OptionError{"--keep-runs", fmt.Sprintf("%d is negative", o.KeepRuns)})
	}
	if key := o.RequireSignature; key != "" && (!path.IsAbs(key) || strings.ContainsAny(key, "$;")) {
		errs = append(errs, &OptionError{"--require-signature", fmt.Sprintf("%q is no absolute path on the host without '$' and ';'", key)})
	}
	if o.DeadManAfter < 0 {
		errs = append(errs, &OptionError{"--dead-man-after", fmt.Sprintf("%v is negative", o.DeadManAfter)})
	}
	return errors.Join(errs...)
}

// DrainOptions are the drain step's; they carry the names and meanings of
// `kubectl drain`'s flags. The fields are those of the step itself, so that one
// converts into the other. Mind the zero value: it kills pods at once.
type DrainOptions struct {
	DeleteEmptyDirData bool
	Force              bool
	IgnoreDaemonSets   bool
	DisableEviction    bool
	GracePeriod        time.Duration // negative: each pod's own
	Timeout            time.Duration // of the whole drain; 0: the program's default
	PodSelector        string
	SkipWaitForDelete  time.Duration // --skip-wait-for-delete-timeout
}

// args say the two that the program switches on by default in any case.
func (o DrainOptions) args() []string {
	args := []string{
		"--delete-emptydir-data=" + strconv.FormatBool(o.DeleteEmptyDirData),
		"--ignore-daemonsets=" + strconv.FormatBool(o.IgnoreDaemonSets),
	}
	if o.Force {
		args = append(args, "--force")
	}
	if o.DisableEviction {
		args = append(args, "--disable-eviction")
	}
	if o.GracePeriod >= 0 {
		args = append(args, "--grace-period="+seconds(o.GracePeriod))
	}
	if o.Timeout > 0 {
		args = append(args, "--timeout="+o.Timeout.String())
	}
	if o.PodSelector != "" {
		args = append(args, "--pod-selector="+o.PodSelector)
	}
	if o.SkipWaitForDelete > 0 {
		args = append(args, "--skip-wait-for-delete-timeout="+seconds(o.SkipWaitForDelete))
	}
	return args
}

func (o DrainOptions) validate() error {
	var errs []error
	if o.GracePeriod >= 0 && o.GracePeriod%time.Second != 0 {
		errs = append(errs, &OptionError{"--grace-period", fmt.Sprintf("%v is not whole seconds", o.GracePeriod)})
	}
	if o.Timeout < 0 {
		errs = append(errs, &OptionError{"--timeout", fmt.Sprintf("%v is negative", o.Timeout)})
	}
	if o.SkipWaitForDelete < 0 || o.SkipWaitForDelete%time.Second != 0 {
		errs = append(errs, &OptionError{"--skip-wait-for-delete-timeout", fmt.Sprintf("%v is not whole seconds", o.SkipWaitForDelete)})
	}
	if _, err := labels.Parse(o.PodSelector); err != nil {
		errs = append(errs, &OptionError{"--pod-selector", err.Error()})
	}
	return errors.Join(errs...)
}

// seconds is d as kubectl's flags of that unit take it.
func seconds(d time.Duration) string { return strconv.FormatInt(int64(d/time.Second), 10) }
