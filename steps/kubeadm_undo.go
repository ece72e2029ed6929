package steps

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
)

// undoKubeadm puts back what the kubeadm step has changed, from the run's
// backup, and proves that the node is well with it: on a worker always, on a
// control plane while kubeadm has changed nothing of it that counts, or has
// taken that back itself. A control plane that was upgraded, in part or
// wholly, goes back only with Options.RestoreEtcd, by the snapshot of its only
// etcd member; without it nothing is touched, and the error says what is left
// and how to go on. It is idempotent, also after a crash.
func undoKubeadm(ctx context.Context, env Env) error {
	b, err := lookBack(ctx, env)
	if err != nil {
		return err
	}
	switch {
	case b.restoring != nil || b.upgraded && env.Options.RestoreEtcd:
		return b.restoreEtcd(ctx, env)
	case b.upgraded:
		return b.irreversible(env)
	default:
		return b.putBack(ctx, env)
	}
}

// kubeadmUndoBlocks are the reasons for which undoKubeadm would change nothing.
func kubeadmUndoBlocks(ctx context.Context, env Env) ([]Block, error) {
	b, err := lookBack(ctx, env)
	if err != nil {
		return nil, err
	}
	switch {
	case b.restoring != nil && !env.Options.RestoreEtcd:
		return []Block{b.restoring.block()}, nil
	case b.restoring != nil || !b.upgraded:
		return nil, nil
	case !env.Options.RestoreEtcd:
		err := b.irreversible(env)
		return []Block{{Reason: err.Error(), Hint: strings.Join(Hints(err), "; ")}}, nil
	default:
		_, blocks, err := b.planRestore(ctx, env)
		return blocks, err
	}
}

// undoRecord is what an interrupted undo has to remember.
type undoRecord struct {
	// Kubelet: it has to be started anew, since what it reads was put back.
	Kubelet bool `json:"kubelet"`
}

const undoRecordName = "kubeadm-undo"

// putBack puts the files back, and proves that what was there before works.
func (b wayBack) putBack(ctx context.Context, env Env) error {
	changed := b.changed()
	var owed undoRecord
	if _, err := env.Record.Load(undoRecordName, &owed); err != nil {
		return err
	}
	if slices.ContainsFunc(changed, func(k StepKept) bool { return slices.Contains(kubeletReads(), k.Path) }) {
		owed.Kubelet = true
		if err := env.Record.Save(ctx, undoRecordName, owed); err != nil {
			return err
		}
	}
	if len(changed) == 0 && !owed.Kubelet {
		return b.tidy(env)
	}
	if err := b.present(ctx, env); err != nil {
		return err
	}
	records, files := split(changed, func(k StepKept) bool { return path.Dir(k.Path) == StateDir })
	for _, k := range files {
		if err := b.restore(ctx, env, k); err != nil {
			return err
		}
	}
	if owed.Kubelet {
		if err := restartKubelet(ctx, env); err != nil {
			return err
		}
		if err := env.Record.Save(ctx, undoRecordName, undoRecord{}); err != nil {
			return err
		}
	}
	if err := b.awaitControlPlane(ctx, env); err != nil {
		return err
	}
	if err := b.tidy(env); err != nil {
		return err
	}
	for _, k := range records {
		if err := b.restore(ctx, env, k); err != nil {
			return err
		}
	}
	return nil
}

func (b wayBack) restore(ctx context.Context, env Env, k StepKept) error {
	env.Log.Info("putting back", "file", k.Path)
	return putBack(ctx, env, k.Kept)
}

func split(all []StepKept, first func(StepKept) bool) (yes, no []StepKept) {
	for _, k := range all {
		if first(k) {
			yes = append(yes, k)
		} else {
			no = append(no, k)
		}
	}
	return yes, no
}

// present is nil when the images of the static pods that are to be made again
// are in the node's image store: without a registry nothing brings them.
func (b wayBack) present(ctx context.Context, env Env) error {
	if len(b.manifests()) == 0 {
		return nil
	}
	blocks, err := b.missingImages(ctx, env)
	return errors.Join(err, blockedBy(blocks))
}

func (b wayBack) missingImages(ctx context.Context, env Env) ([]Block, error) {
	pods, err := b.pods(env)
	if err != nil {
		return nil, err
	}
	client, err := env.Runtime(ctx)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	var blocks []Block
	for _, p := range pods {
		id, err := client.ImageID(ctx, p.image())
		if err != nil {
			return nil, err
		}
		if id == "" {
			blocks = append(blocks, Block{
				Reason: "the old image " + p.image() + " is not on the node any more",
				Hint:   "crictl pull " + p.image() + ", or ctr -n k8s.io images import of its archive",
			})
		}
	}
	return blocks, nil
}

// awaitControlPlane waits until the static pods run as their manifests have it,
// and the API server says the version of its image.
func (b wayBack) awaitControlPlane(ctx context.Context, env Env) error {
	if !b.controlPlane() {
		return nil
	}
	pods, err := staticPods(env.Host.FS)
	if err != nil {
		return err
	}
	if err := waitStaticPods(ctx, env, pods); err != nil {
		return err
	}
	_, have, err := reachAPI(ctx, env, apiReturns)
	if err != nil {
		return &HintError{Err: err, Hint: "crictl ps -a --name kube-apiserver; journalctl -u kubelet"}
	}
	for _, p := range pods {
		if p.component == kubeAPIServer && imageVersion(p.image()) != nil && !p.atVersion(have) {
			return fmt.Errorf("the API server says %s, and its manifest has %s", have, p.image())
		}
	}
	return nil
}

// tidy removes what kubeadm has added to its own backups, and never removes.
func (b wayBack) tidy(env Env) error {
	var before kubeadmBefore
	if there, err := env.Record.Load(beforeRecord, &before); err != nil || !there {
		return err
	}
	now, err := names(env.Host.FS, kubeadmTmpDir)
	if err != nil {
		return err
	}
	left := 0
	for _, name := range now {
		if slices.Contains(before.Tmp, name) || !strings.HasPrefix(name, "kubeadm-") {
			left++
			continue
		}
		if err := env.Host.FS.RemoveAll(path.Join(kubeadmTmpDir, name)); err != nil {
			return err
		}
	}
	if left > 0 || before.TmpThere {
		return nil
	}
	return env.Host.FS.Remove(kubeadmTmpDir)
}
