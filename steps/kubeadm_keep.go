package steps

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

const (
	pkiDir         = kubernetesDir + "/pki"
	instanceConfig = "/var/lib/kubelet/instance-config.yaml"
)

// beforeRecord is kubeadmBefore in the run's record.
const beforeRecord = "kubeadm-before"

// kubeadmBefore is what the run's originals do not tell of the node as it was
// before kubeadm.
type kubeadmBefore struct {
	// Tmp are the names in kubeadmTmpDir, which kubeadm adds to and never
	// removes; TmpThere tells whether it was there at all.
	Tmp      []string `json:"tmp"`
	TmpThere bool     `json:"tmpThere"`
}

// keepFiles keeps the original of every file that kubeadm may write, and what
// is recorded of an earlier kubeadm. As long as this run's kubeadm has not been
// started, what an earlier attempt has kept is brought up to date: the node has
// lived on since.
func (k *kubeadmState) keepFiles(ctx context.Context, env Env) error {
	touched, err := k.touched(ctx, env)
	if err != nil {
		return err
	}
	keep := backup
	if !touched {
		keep = backupNow
		if err := keepBefore(ctx, env); err != nil {
			return err
		}
	}
	files, err := kubeadmFiles(env.Host.FS, env.Node.Role)
	if err != nil {
		return err
	}
	for _, f := range files {
		if err := keep(ctx, env, f); err != nil {
			return fmt.Errorf("keep %s: %w", f, err)
		}
	}
	return nil
}

// touched tells whether a kubeadm of this run may have written already.
func (k *kubeadmState) touched(ctx context.Context, env Env) (bool, error) {
	if k.started != nil {
		return true, nil
	}
	return finishedInRun(ctx, env)
}

// finishedInRun tells whether a kubeadm of this run has come to its end.
func finishedInRun(ctx context.Context, env Env) (bool, error) {
	history, err := env.Record.Journal().History()
	if err != nil {
		return false, err
	}
	kept, there := history.kept(upgradedFile)
	if !there {
		return false, nil
	}
	now, err := digestOrAbsent(ctx, env.Host.FS, upgradedFile)
	return now != kept.Before && now != absent, err
}

// backupNow is backup for a file that nobody has changed yet for this run.
func backupNow(ctx context.Context, env Env, file string) error {
	history, err := env.Record.Journal().History()
	if err != nil {
		return err
	}
	now, err := digestOrAbsent(ctx, env.Host.FS, file)
	if err != nil {
		return err
	}
	if k, there := history.kept(file); there && k.Before == now {
		return nil
	}
	return backupAgain(ctx, env, file)
}

func keepBefore(ctx context.Context, env Env) error {
	var b kubeadmBefore
	var err error
	if b.Tmp, err = names(env.Host.FS, kubeadmTmpDir); err == nil {
		b.TmpThere, err = env.Host.FS.Exists(kubeadmTmpDir)
	}
	if err != nil {
		return err
	}
	return env.Record.Save(ctx, beforeRecord, b)
}

// names are those of a directory's entries, none where it is not there.
func names(host hostexec.FS, dir string) ([]string, error) {
	entries, err := host.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	all := make([]string, len(entries))
	for i, e := range entries {
		all[i] = e.Name()
	}
	return all, nil
}

// kubeadmFiles are the files that kubeadm writes on a node of this role, whether
// they are there or not, and everything beside them that is of their kind.
func kubeadmFiles(host hostexec.FS, role Role) ([]string, error) {
	files := []string{kubeletConfig, kubeletFlagsFile, instanceConfig, kubeletConf, upgradedFile, startedFile}
	if role == ControlPlane {
		for _, c := range controlPlane() {
			files = append(files, manifestPath(c))
		}
		for _, name := range []string{"admin", "super-admin", "controller-manager", "scheduler"} {
			files = append(files, path.Join(kubernetesDir, name+".conf"))
		}
		for _, name := range kubeadmPKI() {
			files = append(files, path.Join(pkiDir, name))
		}
	}
	for _, dir := range []struct{ path, suffix string }{{kubernetesDir, ".conf"}, {manifestsDir, ".yaml"}} {
		all, err := names(host, dir.path)
		if err != nil {
			return nil, err
		}
		for _, name := range all {
			if strings.HasSuffix(name, dir.suffix) && !strings.HasPrefix(name, ".") {
				files = append(files, path.Join(dir.path, name))
			}
		}
	}
	pki, err := filesBelow(host, pkiDir)
	if err != nil {
		return nil, err
	}
	return regular(host, unique(append(files, pki...)))
}

// kubeadmPKI are the certificates and keys that kubeadm makes where they are
// not there.
func kubeadmPKI() []string {
	all := []string{"sa.key", "sa.pub"}
	for _, pair := range []string{
		"ca", "apiserver", "apiserver-kubelet-client", "apiserver-etcd-client", "front-proxy-ca", "front-proxy-client",
		"etcd/ca", "etcd/server", "etcd/peer", "etcd/healthcheck-client",
	} {
		all = append(all, pair+".crt", pair+".key")
	}
	return all
}

// filesBelow are all files of a tree, temporary ones of ours aside.
func filesBelow(host hostexec.FS, dir string) ([]string, error) {
	entries, err := host.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var files []string
	for _, e := range entries {
		p := path.Join(dir, e.Name())
		if _, temporary := hostexec.TempOf(p); temporary {
			continue
		}
		if !e.IsDir() {
			files = append(files, p)
			continue
		}
		below, err := filesBelow(host, p)
		if err != nil {
			return nil, err
		}
		files = append(files, below...)
	}
	return files, nil
}

// regular leaves out what is there and is no file.
func regular(host hostexec.FS, files []string) ([]string, error) {
	var kept []string
	for _, f := range files {
		info, err := host.Stat(f)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		if err != nil || info.Mode().IsRegular() {
			kept = append(kept, f)
		}
	}
	return kept, nil
}

func unique(all []string) []string {
	seen := map[string]bool{}
	var kept []string
	for _, s := range all {
		if !seen[s] {
			kept = append(kept, s)
		}
		seen[s] = true
	}
	return kept
}
