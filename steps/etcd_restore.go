package steps

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"time"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

// restoreFile is there while a restore of etcd is under way. It lies outside of
// the run's record: whatever is started next on this node has to know.
const restoreFile = StateDir + "/etcd-restore.json"

// The stages of a restore, each recorded before its first change. What is there
// of a stage after a crash is done again, or found done.
const (
	// stageData: the snapshot is unpacked beside etcd's data. The control plane
	// still runs, and nothing of it has changed.
	stageData = "data"
	// stageFiles: the kubelet is stopped, the control plane's pods are removed,
	// etcd's data is exchanged, and the files of before are put back.
	stageFiles = "files"
	// stageProof: all of it lies there; it has to come up.
	stageProof = "proof"
)

// etcdRestore is what is recorded of a restore that is under way. It is all
// that is needed to bring it to its end.
type etcdRestore struct {
	Schema   int      `json:"schema"`
	Run      string   `json:"run"`
	Stage    string   `json:"stage"`
	Snapshot snapshot `json:"snapshot"`
	// Member is etcd's data, Aside where it is kept until what was restored is
	// proven, and Work the directory in which the snapshot is unpacked. All of
	// them are in etcd's data directory, which may be a mount point.
	Member string    `json:"member"`
	Aside  string    `json:"aside"`
	Work   string    `json:"work"`
	Begun  time.Time `json:"begun"`
}

// loadRestore returns nil where no restore is under way.
func loadRestore(host hostexec.FS) (*etcdRestore, error) {
	data, err := host.ReadFile(restoreFile)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil //nolint:nilnil // it is optional
	}
	if err != nil {
		return nil, err
	}
	var r etcdRestore
	if err := json.Unmarshal(data, &r); err != nil || r.Schema != 1 {
		return nil, &HintError{
			Err:  fmt.Errorf("%s cannot be read (schema %d): %w", restoreFile, r.Schema, err),
			Hint: "it was written by another upgrader: use that one, it is staged below " + Store,
		}
	}
	return &r, nil
}

// enter records that a stage begins.
func (r *etcdRestore) enter(ctx context.Context, env Env, stage string) error {
	r.Stage = stage
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	env.Log.Info("restoring etcd", "stage", stage)
	return env.Host.FS.WriteFile(ctx, restoreFile, append(data, '\n'), 0o600)
}

func (r *etcdRestore) block() Block {
	return Block{
		Reason: fmt.Sprintf("a restore of etcd to its state of %s was begun and is not complete", r.Snapshot.taken()),
		Hint:   "finish it: upgrader rollback --run-id " + r.Run + " --restore-etcd",
	}
}

// restoreUnderWay blocks whatever would upgrade a control plane that is on its
// way back.
func restoreUnderWay(host hostexec.FS) ([]Block, error) {
	r, err := loadRestore(host)
	if err != nil || r == nil {
		return nil, err
	}
	return []Block{r.block()}, nil
}

func blockedBy(blocks []Block) error {
	if len(blocks) == 0 {
		return nil
	}
	return &BlockedError{Blocks: blocks}
}

// restoreEtcd puts a control plane with the only member of its etcd back by the
// run's snapshot: all that was written to the cluster since is lost. It changes
// nothing until the snapshot is unpacked; from then on each next call goes on
// where the last one was interrupted. On no way out is the kubelet left stopped.
// etcd's data of before the restore is kept until the old control plane is up,
// and in the run's record afterwards.
func (b wayBack) restoreEtcd(ctx context.Context, env Env) error {
	r := b.restoring
	if r == nil {
		var blocks []Block
		var err error
		if r, blocks, err = b.planRestore(ctx, env); err != nil {
			return err
		}
		if err := blockedBy(blocks); err != nil {
			return err
		}
		env.Log.Warn("all that was written to the cluster since then is lost", "snapshot", r.Snapshot.File, "taken", r.Snapshot.Taken)
		if err := r.enter(ctx, env, stageData); err != nil {
			return err
		}
	} else if err := r.mayGoOn(env); err != nil {
		return err
	}
	if r.Stage == stageData {
		if err := b.unpack(ctx, env, r); err != nil { // nothing has changed yet
			return errors.Join(err, env.Host.FS.RemoveAll(r.Work), forgetRestore(env))
		}
		if err := r.enter(ctx, env, stageFiles); err != nil {
			return err
		}
	}
	if r.Stage == stageFiles {
		if err := b.exchange(ctx, env, r); err != nil {
			back, cancel := context.WithTimeout(context.WithoutCancel(ctx), kubeletComesUp)
			defer cancel()
			return errors.Join(err, env.Host.Units.Start(back, kubeletUnit))
		}
		if err := r.enter(ctx, env, stageProof); err != nil {
			return err
		}
	}
	if err := b.prove(ctx, env); err != nil {
		return &HintError{Err: err, Hint: "etcd's data of before the restore is in " + r.Aside + "; when the cause is mended: " + r.block().Hint}
	}
	return b.settle(ctx, env, r)
}

// mayGoOn refuses to go on without the user's word, or for another run.
func (r *etcdRestore) mayGoOn(env Env) error {
	if env.Options.RestoreEtcd && path.Dir(r.Snapshot.File) == env.Record.Path() {
		return nil
	}
	return &BlockedError{Blocks: []Block{r.block()}}
}

// exchange stops what uses the files and exchanges them.
func (b wayBack) exchange(ctx context.Context, env Env, r *etcdRestore) error {
	env.Log.Info("stopping", "unit", kubeletUnit)
	if err := env.Host.Units.Stop(ctx, kubeletUnit); err != nil {
		return err
	}
	if err := removeStaticPods(ctx, env); err != nil {
		return err
	}
	return b.exchangeFiles(ctx, env, r)
}

// exchangeFiles is the part that needs nothing that runs, and nothing that runs
// on these files: it can be done before the kubelet's start at boot too. etcd's
// manifest goes first and comes last, so that no etcd ever starts, and makes a
// new cluster, where its data is not there.
func (b wayBack) exchangeFiles(ctx context.Context, env Env, r *etcdRestore) error {
	if err := r.exchangeData(env); err != nil {
		return err
	}
	var last []StepKept
	for _, k := range b.changed() {
		switch {
		case k.Path == manifestPath(etcdName):
			last = append(last, k)
		case path.Dir(k.Path) == StateDir: // after the proof
		default:
			if err := b.restore(ctx, env, k); err != nil {
				return err
			}
		}
	}
	for _, k := range last {
		if err := b.restore(ctx, env, k); err != nil {
			return err
		}
	}
	return nil
}

// removeStaticPods removes the control plane's pods, etcd last. The kubelet has
// to be stopped.
func removeStaticPods(ctx context.Context, env Env) error {
	client, err := env.Runtime(ctx)
	if err != nil {
		return err
	}
	defer client.Close()
	for _, c := range []string{kubeAPIServer, kubeControllerManager, kubeScheduler, etcdName} {
		pod := c + "-" + env.Node.Name
		if err := env.change("remove-pod", "kube-system/"+pod, func() error {
			return client.RemovePod(ctx, "kube-system", pod)
		}); err != nil {
			return err
		}
	}
	return nil
}

// prove starts the kubelet, and waits until the control plane of before is well
// and the node reports to it.
func (b wayBack) prove(ctx context.Context, env Env) error {
	if err := startToWork(ctx, env); err != nil {
		return err
	}
	if err := b.awaitControlPlane(ctx, env); err != nil {
		return err
	}
	return awaitReport(ctx, env)
}

// settle clears away what only an interrupted restore needs.
func (b wayBack) settle(ctx context.Context, env Env, r *etcdRestore) error {
	if err := r.keepAside(env); err != nil {
		return err
	}
	if err := b.tidy(env); err != nil {
		return err
	}
	for _, k := range b.changed() {
		if path.Dir(k.Path) == StateDir {
			if err := b.restore(ctx, env, k); err != nil {
				return err
			}
		}
	}
	return forgetRestore(env)
}

func forgetRestore(env Env) error { return env.Host.FS.Remove(restoreFile) }
