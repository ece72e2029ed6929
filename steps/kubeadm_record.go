package steps

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

// upgradedFile remembers, beyond a run, that `kubeadm upgrade` has finished: a
// worker shows nothing else of it.
const upgradedFile = StateDir + "/kubeadm.json"

// intentRecord is the name of an intent in the run's record.
const intentRecord = "kubeadm"

// intent is written before kubeadm starts. A kubeadm that was interrupted is
// run again the same way: once it has uploaded the new ClusterConfiguration,
// nothing else tells that this node was the one to apply it.
type intent struct {
	Mode       string    `json:"mode"` // apply or node
	Version    string    `json:"version"`
	Started    time.Time `json:"started"`
	EtcdCopies []string  `json:"etcdCopies"` // kubeadm's copies of etcd's data that were there before
}

// loadIntent returns nil where kubeadm has not been started in this run.
func loadIntent(env Env) (*intent, error) {
	var i intent
	there, err := env.Record.Load(intentRecord, &i)
	if err != nil || !there || i.Version != env.Bundle.Manifest.KubernetesVersion {
		return nil, err
	}
	return &i, nil
}

// upgraded is a finished `kubeadm upgrade`.
type upgraded struct {
	Schema   int               `json:"schema"`
	Version  string            `json:"version"`
	Mode     string            `json:"mode"`
	Kubeadm  string            `json:"kubeadm"` // sha256 of the program
	Bundle   string            `json:"bundle"`
	Finished time.Time         `json:"finished"`
	Files    map[string]string `json:"files"`            // sha256 of the kubelet's configuration and flags
	Images   map[string]string `json:"images,omitempty"` // of the static pods, as kubeadm wrote them
}

// loadUpgraded returns what finished at this version, nil without it. A record
// that cannot be read counts for nothing: the upgrade is run again.
func loadUpgraded(env Env) (*upgraded, error) {
	data, err := env.Host.FS.ReadFile(upgradedFile)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil //nolint:nilnil // it is optional
	}
	if err != nil {
		return nil, err
	}
	var u upgraded
	if err := json.Unmarshal(data, &u); err != nil {
		env.Log.Warn("ignoring a damaged record", "file", upgradedFile, "reason", err.Error())
		return nil, nil //nolint:nilnil // as above
	}
	if u.Schema != 1 || u.Version != env.Bundle.Manifest.KubernetesVersion {
		return nil, nil //nolint:nilnil // as above
	}
	return &u, nil
}

// fits tells whether the kubelet's files are still those that kubeadm left.
func (u *upgraded) fits(ctx context.Context, env Env) (bool, error) {
	files, err := kubeletFiles(ctx, env.Host.FS)
	return err == nil && maps.Equal(files, u.Files), err
}

func kubeletFiles(ctx context.Context, host hostexec.FS) (map[string]string, error) {
	files := map[string]string{}
	for _, p := range []string{kubeletConfig, kubeletFlagsFile} {
		digest, err := host.Digest(ctx, p)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		files[p] = digest
	}
	return files, nil
}

// finish makes durable what kubeadm wrote, which it does not fsync, and records
// that it has finished.
func finish(ctx context.Context, env Env, mode, kubeadm string) error {
	host := env.Host.FS
	written := []string{kubeletConfig, kubeletFlagsFile, path.Dir(kubeletConfig), kubernetesDir, manifestsDir}
	for _, name := range controlPlane() {
		written = append(written, manifestPath(name))
	}
	for _, p := range written {
		if err := syncFile(host, p); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("make %s durable: %w", p, err)
		}
	}
	u := upgraded{
		Schema: 1, Version: env.Bundle.Manifest.KubernetesVersion, Mode: mode, Kubeadm: kubeadm,
		Bundle: env.Bundle.Digest, Finished: env.Clock.Now().UTC(), Images: map[string]string{},
	}
	var err error
	if u.Files, err = kubeletFiles(ctx, host); err != nil {
		return err
	}
	if env.Node.Role == ControlPlane {
		pods, err := staticPods(host)
		if err != nil {
			return err
		}
		for _, p := range pods {
			u.Images[p.component] = p.image()
		}
	}
	data, err := json.MarshalIndent(u, "", "  ")
	if err != nil {
		return err
	}
	return host.WriteFile(ctx, upgradedFile, append(data, '\n'), 0o600)
}

func syncFile(host hostexec.FS, p string) error {
	f, err := host.Open(p)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// etcdCopies are kubeadm's copies of etcd's data.
func etcdCopies(host hostexec.FS) ([]string, error) {
	entries, err := host.ReadDir(kubeadmTmpDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var copies []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "kubeadm-backup-etcd-") {
			copies = append(copies, path.Join(kubeadmTmpDir, e.Name()))
		}
	}
	return copies, nil
}

// pruneCopies removes the copies that kubeadm made in this run and never
// removes itself (https://github.com/kubernetes/kubernetes/issues/125357). The
// snapshot in the run's record has the same content. Others' stay.
func pruneCopies(env Env) error {
	started, err := loadIntent(env)
	if err != nil || started == nil {
		return err
	}
	copies, err := etcdCopies(env.Host.FS)
	if err != nil {
		return err
	}
	for _, c := range copies {
		if slices.Contains(started.EtcdCopies, c) {
			continue
		}
		env.Log.Info("removing kubeadm's copy of etcd's data", "dir", c)
		if err := env.Host.FS.RemoveAll(c); err != nil {
			return err
		}
	}
	return nil
}
