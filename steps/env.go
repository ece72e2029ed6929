package steps

import (
	"context"
	"log/slog"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/node-upgrader/node-upgrader/hostexec"
	"github.com/node-upgrader/node-upgrader/image"
	"github.com/node-upgrader/node-upgrader/steps/cri"
)

// Env is the node as a step sees it, and all that a step may touch. It is
// passed by value.
type Env struct {
	Host hostexec.Host
	// Bundle is what is installed; nil in a rollback.
	Bundle *image.Bundle
	Node   Node
	Record Record
	// Runtime connects to the node's containerd. Close the client after use: a
	// connection does not survive containerd's restart.
	Runtime func(context.Context) (cri.Client, error)
	// Kube is the API server as the node itself may use it (the kubelet's
	// credentials): to read its own Node and pods.
	Kube func(context.Context) (kubernetes.Interface, error)
	// Admin is the API server with the rights to cordon and to evict: the
	// pod's service account, --kubeconfig, or a control plane's admin.conf.
	Admin func(context.Context) (kubernetes.Interface, error)
	// Probe asks a loopback health endpoint; nil error means healthy.
	Probe func(ctx context.Context, url string) error
	Clock Clock
	Log   *slog.Logger
	// Watch, if there is one, is told of each change after the journal.
	Watch hostexec.Watch
	// Program is the staged upgrader that this process runs, by its path on the
	// host: what the dead-man's switch and the recovery at boot start. "" where
	// nothing of the host is swapped.
	Program string
	// Staging is what the copy step needs to know of this process.
	Staging Staging
	// Options as given by the user.
	Options Options

	// copyFirst: the copy step is looked at as well, and brings what is missing.
	copyFirst bool
}

// Clock is the time, so that tests need not wait for it.
type Clock struct {
	Now   func() time.Time
	Sleep func(context.Context, time.Duration) error
}

// SystemClock is the machine's own clock.
func SystemClock() Clock {
	return Clock{
		Now: time.Now,
		Sleep: func(ctx context.Context, d time.Duration) error {
			t := time.NewTimer(d)
			defer t.Stop()
			select {
			case <-t.C:
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		},
	}
}

// Role is what a node is to kubeadm.
type Role string

// The roles of a node.
const (
	ControlPlane Role = "control-plane"
	Worker       Role = "worker"
)

// Node is what does not change about the node during an upgrade.
type Node struct {
	Name string `json:"name"`
	Role Role   `json:"role"`
}

// Options are what the user decides. The zero value is a usable default but for
// Drain, whose default is DefaultDrain.
type Options struct {
	Role       Role // "": found out
	RunID      string
	DrainFirst bool
	Kubeadm    KubeadmOptions
	Drain      DrainOptions
	// OnFailure is what follows when a step fails after its first change of the
	// host; "" is Rollback.
	OnFailure OnFailure
	// KeepRuns is how many ended runs' records and backups are kept beside the
	// open one's; 0 is DefaultKeepRuns.
	KeepRuns int
	// RequireSignature is the path on the host of the keys of which one must have
	// signed the bundle; "" demands no more than the host itself (PolicyKeys).
	RequireSignature string
	// RestoreEtcd lets a rollback put a control plane back by the snapshot of
	// its only etcd member: what was written to the cluster since is lost.
	RestoreEtcd bool
	// NoDrain lets a rollback go on under pods that a drain would have taken
	// away: where the API server is gone, there is no other way.
	NoDrain bool
	// DeadMan (negative: no switch is armed) is how long after a service was stopped for its swap the dead-man's
	// switch puts the old files back, unless health has disarmed it; 0 is
	// DefaultDeadMan.
	DeadMan time.Duration
}

// OnFailure is what to do when a step fails after its first change of the host.
type OnFailure string

// What may follow a failure.
const (
	RollBack OnFailure = "rollback" // put back what the step has changed
	Stop     OnFailure = "stop"     // leave everything as it is, to be looked at
)

// Defaults of Options.
const (
	DefaultKeepRuns = 2
	DefaultDeadMan  = 10 * time.Minute
)

// KubeadmOptions are passed on to `kubeadm upgrade` as it spells them.
type KubeadmOptions struct {
	Config                string   // --config
	Patches               string   // --patches
	CertificateRenewal    *bool    // --certificate-renewal; nil: kubeadm's default
	EtcdUpgrade           *bool    // --etcd-upgrade; nil: kubeadm's default
	IgnorePreflightErrors []string // --ignore-preflight-errors
}

// DrainOptions carry the names and meanings of `kubectl drain`'s flags.
type DrainOptions struct {
	DeleteEmptyDirData bool
	Force              bool
	IgnoreDaemonSets   bool
	DisableEviction    bool
	GracePeriod        time.Duration // negative: each pod's own
	Timeout            time.Duration // of the whole drain; the step's deadline
	PodSelector        string
	SkipWaitForDelete  time.Duration // --skip-wait-for-delete-timeout
}

// DefaultDrain is `kubectl drain --ignore-daemonsets --delete-emptydir-data`
// with ten minutes.
func DefaultDrain() DrainOptions {
	return DrainOptions{DeleteEmptyDirData: true, IgnoreDaemonSets: true, GracePeriod: -1, Timeout: 10 * time.Minute}
}
