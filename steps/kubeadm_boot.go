package steps

import (
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"path"
	"strings"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// mendBeforeKubelet makes the files that the kubelet reads at its start a
// consistent set after a crash: what an interrupted kubeadm has left half-done,
// and what an interrupted restore of etcd has. It works on files alone; nothing
// of the control plane may run. Whose run it was is found out. What it cannot
// decide it leaves as it is, and says so; all the rest is done then. It is
// idempotent.
func mendBeforeKubelet(ctx context.Context, env Env) error {
	if r, err := loadRestore(env.Host.FS); err != nil || r != nil {
		return errors.Join(err, r.onAtBoot(ctx, env))
	}
	started, err := loadIntent(env.Host.FS)
	if err != nil || started == nil {
		return err
	}
	if started.Run != "" {
		if env, err = env.of(started.Run); err != nil {
			return err
		}
	}
	env.Kube = func(context.Context) (kubernetes.Interface, error) {
		return nil, errors.New("there is no API server before the kubelet's start")
	}
	return errors.Join(moveLeftovers(ctx, env), mendLost(ctx, env), mendTorn(ctx, env), putKubeletBack(ctx, env))
}

// of is the same node for another run. Who the node is, which a recovery at boot
// does not ask, is in that run's journal.
func (e Env) of(run string) (Env, error) {
	e.Options.RunID, e.Record = run, NewRecord(e.aside(), run)
	e.Host = e.Host.Watched(e.watch())
	history, err := e.Record.Journal().History()
	if e.Node == (Node{}) {
		e.Node = history.Run.Node
	}
	return e, err
}

// mendInterrupted is done before kubeadm runs again: it and the kubelet are to
// find a consistent set of files.
func mendInterrupted(ctx context.Context, env Env, all []lost) error {
	if err := mend(ctx, env, all); err != nil {
		return err
	}
	if started, err := loadIntent(env.Host.FS); err != nil || started == nil {
		return err
	}
	return errors.Join(mendTorn(ctx, env), moveLeftovers(ctx, env))
}

// onAtBoot brings the files of a restore to the set that the kubelet is to start
// with. One that has only begun to unpack has changed nothing.
func (r *etcdRestore) onAtBoot(ctx context.Context, env Env) error {
	if r == nil || r.Stage != stageFiles {
		return nil
	}
	env, err := env.of(r.Run)
	if err != nil {
		return err
	}
	b, err := lookBack(ctx, env)
	if err != nil {
		return err
	}
	if err := b.exchangeFiles(ctx, env, r); err != nil {
		return err
	}
	return r.enter(ctx, env, stageProof)
}

// mendLost puts back what is missing or unreadable and has a backup beyond
// doubt.
func mendLost(ctx context.Context, env Env) error {
	all, err := lostFiles(ctx, env)
	if err != nil {
		return err
	}
	err = mend(ctx, env, all)
	var blocked *BlockedError
	if !errors.As(err, &blocked) {
		return err
	}
	for _, l := range all { // each by itself: what is in doubt stays
		if e := mend(ctx, env, []lost{l}); e != nil && !errors.As(e, &blocked) {
			err = errors.Join(err, e)
		}
	}
	return err
}

// putKubeletBack: while kubeadm is on its way, the kubelet is still the one of
// before, and gets the files of before: what kubeadm has written since may be
// there in part, and kubeadm writes it again.
func putKubeletBack(ctx context.Context, env Env) error {
	for _, f := range []string{kubeletConfig, kubeletFlagsFile, instanceConfig} {
		if err := putOriginalBack(ctx, env, f); err != nil {
			return err
		}
	}
	return nil
}

// mendTorn puts the original of each certificate, key and *.conf back that
// cannot be read, with the other half of its pair: kubeadm, which writes them in
// place when it renews them, cannot go on without.
func mendTorn(ctx context.Context, env Env) error {
	history, err := env.Record.Journal().History()
	if err != nil {
		return err
	}
	for _, k := range history.keptBy(stepKubeadm) {
		if k.Before == absent || path.Dir(k.Path) == StateDir {
			continue
		}
		torn, err := tornFile(env, k.Path)
		if err != nil {
			return err
		}
		if !torn {
			continue
		}
		env.Log.Warn("putting back what an interrupted kubeadm has left half-written", "file", k.Path)
		files := []string{k.Path}
		if half, ok := strings.CutSuffix(k.Path, ".crt"); ok {
			files = append(files, half+".key")
		} else if half, ok := strings.CutSuffix(k.Path, ".key"); ok {
			files = append(files, half+".crt")
		}
		for _, f := range files {
			if err := putOriginalBack(ctx, env, f); err != nil {
				return err
			}
		}
	}
	return nil
}

func putOriginalBack(ctx context.Context, env Env, file string) error {
	history, err := env.Record.Journal().History()
	if err != nil {
		return err
	}
	k, there := history.kept(file)
	if !there {
		return nil
	}
	now, err := digestOrAbsent(ctx, env.Host.FS, file)
	if err != nil || now == k.Before {
		return err
	}
	env.Log.Info("putting back", "file", file)
	if err := putBack(ctx, env, k.Kept); err != nil {
		return fmt.Errorf("put %s back: %w", file, err)
	}
	return nil
}

// tornFile tells whether a file of kubeadm's is not what its name promises.
func tornFile(env Env, file string) (bool, error) {
	dir, kind := path.Dir(file), path.Ext(file)
	inPKI := dir == pkiDir || strings.HasPrefix(dir, pkiDir+"/")
	conf := dir == kubernetesDir && kind == ".conf"
	if !conf && (!inPKI || kind != ".crt" && kind != ".key" && kind != ".pub") {
		return false, nil
	}
	there, err := env.Host.FS.Exists(file)
	if err != nil || !there {
		return !there, err
	}
	data, err := env.Host.FS.ReadFile(file)
	if err != nil {
		return false, err
	}
	if conf {
		config, err := clientcmd.Load(data)
		return err != nil || len(config.Contexts) == 0 || !strings.HasSuffix(string(data), "\n"), nil
	}
	if block, _ := pem.Decode(data); block == nil {
		return true, nil
	}
	half, ok := strings.CutSuffix(file, ".crt")
	if !ok {
		return false, nil
	}
	key, err := env.Host.FS.ReadFile(half + ".key")
	if err != nil {
		return false, nil //nolint:nilerr // a CA's key may be elsewhere
	}
	_, err = tls.X509KeyPair(data, key)
	return err != nil, nil
}
