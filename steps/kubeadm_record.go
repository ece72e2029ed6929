package steps

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"time"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

// upgradedFile remembers, beyond a run, that `kubeadm upgrade` has finished: a
// worker shows nothing else of it.
const upgradedFile = StateDir + "/kubeadm.json"

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
	Copies   []string          `json:"copies,omitempty"` // kubeadm's, of etcd's data, that Snapshot makes needless
	Snapshot *snapshot         `json:"snapshot,omitempty"`
}

// loadUpgraded returns what finished at this version, nil without it.
func loadUpgraded(env Env) (*upgraded, error) {
	u, err := lastUpgraded(env)
	if err != nil || u == nil || u.Version != env.Bundle.Manifest.KubernetesVersion {
		return nil, err
	}
	return u, nil
}

// lastUpgraded returns what finished last, nil without it. A record that cannot
// be read counts for nothing: the upgrade is run again.
func lastUpgraded(env Env) (*upgraded, error) {
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
	if u.Schema != 1 {
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
	return digests(ctx, host, kubeletConfig, kubeletFlagsFile)
}

// digests are the sha256 of the files that are there.
func digests(ctx context.Context, host hostexec.FS, paths ...string) (map[string]string, error) {
	files := map[string]string{}
	for _, p := range paths {
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
// that it has finished. Only then the intent goes.
func finish(ctx context.Context, env Env, started *intent, kubeadm string) error {
	host := env.Host.FS
	for _, dir := range kubeadmWrites() {
		there, err := host.Exists(dir.path)
		if err == nil && (there || !dir.optional) {
			err = host.SyncFS(dir.path)
		}
		if err != nil {
			return fmt.Errorf("make durable what kubeadm wrote: %w", err)
		}
	}
	u := upgraded{
		Schema: 1, Version: env.Bundle.Manifest.KubernetesVersion, Mode: started.Mode, Kubeadm: kubeadm,
		Bundle: env.Bundle.Digest, Finished: env.Clock.Now().UTC(), Images: map[string]string{},
		Snapshot: started.Snapshot,
	}
	var err error
	if u.Copies, err = started.needless(env); err != nil {
		return err
	}
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
	if err := host.WriteFile(ctx, upgradedFile, append(data, '\n'), 0o600); err != nil {
		return err
	}
	return host.Remove(startedFile)
}

type written struct {
	path     string
	optional bool
}

// kubeadmWrites are the directories that kubeadm writes to: the manifests, the
// *.conf, certificates and keys that it renews, the kubelet's files. Any of
// them may be a file system of its own.
func kubeadmWrites() []written {
	return []written{
		{path: kubernetesDir},
		{path: path.Dir(kubeletConfig)},
		{path: manifestsDir, optional: true},
		{path: path.Dir(apiServerCert), optional: true},
	}
}

// needless are the copies that kubeadm made of etcd's data while it ran, where
// the snapshot was taken right before this very start of it, on an unchanged
// node. Where kubeadm was resumed, a copy may hold hours that the snapshot does
// not: it is left to the node's administrator, as are all older ones.
func (i *intent) needless(env Env) ([]string, error) {
	copies, err := i.made(env.Host.FS, etcdBackupPrefix)
	if err != nil || len(copies) == 0 {
		return nil, err
	}
	if i.Snapshot == nil || i.Resumed {
		env.Log.Warn("kubeadm's copies of etcd's data stay: they may be newer than the snapshot", "dirs", copies)
		return nil, nil
	}
	return copies, nil
}

// pruneCopies removes the needless copies of etcd's data, which kubeadm never
// does (https://github.com/kubernetes/kubernetes/issues/125357), as long as the
// snapshot is there.
func pruneCopies(env Env) error {
	done, err := loadUpgraded(env)
	if err != nil || done == nil || done.Snapshot == nil {
		return err
	}
	if there, err := env.Host.FS.Exists(done.Snapshot.File); err != nil || !there {
		return err
	}
	for _, c := range done.Copies {
		there, err := env.Host.FS.Exists(c)
		if err != nil {
			return err
		}
		if !there {
			continue
		}
		env.Log.Info("removing kubeadm's copy of etcd's data", "dir", c)
		if err := env.Host.FS.RemoveAll(c); err != nil {
			return err
		}
	}
	return nil
}
