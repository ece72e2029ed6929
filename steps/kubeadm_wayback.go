package steps

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
)

// wayBack is what a run has kept of the node as it was before kubeadm, beside
// what lies there now.
type wayBack struct {
	kept    []StepKept        // newest first
	now     map[string]string // digests by path
	started *intent
	// finished: a kubeadm of this run has come to its end. upgraded: a component
	// of the control plane has run at its new version, and not gone back, so
	// that only etcd's snapshot leads back.
	finished, upgraded bool
	snapshot           *snapshot
	restoring          *etcdRestore // under way
}

func lookBack(ctx context.Context, env Env) (wayBack, error) {
	b := wayBack{now: map[string]string{}}
	history, err := env.Record.Journal().History()
	if err != nil {
		return b, err
	}
	b.kept = history.keptBy(stepKubeadm)
	for _, k := range b.kept {
		if b.now[k.Path], err = digestOrAbsent(ctx, env.Host.FS, k.Path); err != nil {
			return b, err
		}
	}
	if b.restoring, err = loadRestore(env.Host.FS); err != nil {
		return b, err
	}
	if b.started, err = loadIntent(env.Host.FS); err != nil {
		return b, err
	}
	if b.finished, err = finishedInRun(ctx, env); err != nil {
		return b, err
	}
	done, err := lastUpgraded(env)
	if err != nil {
		return b, err
	}
	switch {
	case b.started != nil:
		b.snapshot = b.started.Snapshot
	case b.finished && done != nil:
		b.snapshot = done.Snapshot
	}
	b.upgraded, err = b.isUpgraded(env)
	return b, err
}

// isUpgraded: a kubeadm that fails puts the manifests back itself, but for
// etcd's where that is well, and etcd is what it begins with. Within a minor
// version etcd goes back with its data. A manifest that is missing was taken
// away for a new one that never came.
func (b wayBack) isUpgraded(env Env) (bool, error) {
	if !b.controlPlane() || b.finished {
		return b.controlPlane(), nil
	}
	for _, c := range b.manifests() {
		switch {
		case b.now[manifestPath(c)] == absent:
		case c != etcdName:
			return true, nil
		default:
			same, err := b.sameEtcd(env)
			if err != nil || !same {
				return true, err
			}
		}
	}
	return false, nil
}

// sameEtcd tells whether etcd's manifest is of its original's minor version.
func (b wayBack) sameEtcd(env Env) (bool, error) {
	old, err := readStaticPod(env.Host.FS, etcdName, backupPath(env, manifestPath(etcdName)))
	if err != nil {
		return false, err
	}
	live, err := readStaticPod(env.Host.FS, etcdName, manifestPath(etcdName))
	if err != nil {
		return false, nil //nolint:nilerr // it cannot be told
	}
	was, is := imageVersion(old.image()), imageVersion(live.image())
	return was != nil && is != nil && was.Major() == is.Major() && was.Minor() == is.Minor(), nil
}

func (b wayBack) controlPlane() bool {
	return slices.ContainsFunc(b.kept, func(k StepKept) bool {
		return k.Path == manifestPath(kubeAPIServer) && k.Before != absent
	})
}

// changed are the originals that differ from what lies there now.
func (b wayBack) changed() []StepKept {
	return slices.DeleteFunc(slices.Clone(b.kept), func(k StepKept) bool { return b.now[k.Path] == k.Before })
}

// manifests are the components whose manifests differ from their originals.
func (b wayBack) manifests() []string {
	var differ []string
	for _, c := range controlPlane() {
		if slices.ContainsFunc(b.changed(), func(k StepKept) bool { return k.Path == manifestPath(c) }) {
			differ = append(differ, c)
		}
	}
	return differ
}

// pods are the static pods by their original manifests.
func (b wayBack) pods(env Env) ([]staticPod, error) {
	var pods []staticPod
	for _, c := range controlPlane() {
		i := slices.IndexFunc(b.kept, func(k StepKept) bool { return k.Path == manifestPath(c) })
		if i < 0 || b.kept[i].Before == absent {
			continue
		}
		p, err := readStaticPod(env.Host.FS, c, backupPath(env, manifestPath(c)))
		if err != nil {
			return nil, err
		}
		pods = append(pods, p)
	}
	return pods, nil
}

// irreversible says what is left and how to go on.
func (b wayBack) irreversible(env Env) error {
	state := "has been upgraded"
	if !b.finished {
		state = "is half upgraded"
	}
	var differ []string
	for _, c := range b.manifests() {
		if p, err := readStaticPod(env.Host.FS, c, manifestPath(c)); err == nil {
			differ = append(differ, p.image())
		} else {
			differ = append(differ, c+" without a manifest")
		}
	}
	if len(differ) > 0 {
		state += " (" + strings.Join(differ, ", ") + ")"
	}
	err := fmt.Errorf("the control plane %s, and does not go back by its files alone: nothing of it was put back", state)
	var ways []string
	if !b.finished {
		ways = append(ways, "finish the upgrade: run the upgrader again")
	}
	switch {
	case b.snapshot != nil && path.Dir(b.snapshot.File) != env.Record.Path():
		ways = append(ways, "the run that started kubeadm has what it was: "+b.snapshot.File)
	case b.snapshot != nil:
		ways = append(ways, "upgrader rollback --run-id "+env.Options.RunID+" --restore-etcd, which loses all that was written to the cluster since "+b.snapshot.taken())
	default:
		ways = append(ways, externalEtcdHint)
	}
	return &HintError{Err: err, Hint: strings.Join(ways, "; or ")}
}

func (s *snapshot) taken() string { return s.Taken.Format("2006-01-02 15:04:05 MST") }
