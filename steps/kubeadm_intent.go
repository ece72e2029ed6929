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

// startedFile is there while a `kubeadm upgrade` that was started has not
// finished. It lies beside upgradedFile and not in a run's record: whichever
// run comes next has to bring it to its end.
const startedFile = StateDir + "/kubeadm-started.json"

// intent is written before kubeadm starts. A kubeadm that was interrupted is
// run again the same way: once it has uploaded the new ClusterConfiguration,
// nothing else tells that this node was the one to apply it.
type intent struct {
	Mode    string    `json:"mode"` // apply or node
	Version string    `json:"version"`
	Started time.Time `json:"started"`
	Run     string    `json:"run,omitempty"` // whose originals are those of before
	Backups []string  `json:"backups"`       // kubeadm's own that were there before
	// Manifests are the sha256 of the control plane's before, and Snapshot is
	// what was taken of etcd then.
	Manifests map[string]string `json:"manifests,omitempty"`
	Snapshot  *snapshot         `json:"snapshot,omitempty"`
	// Resumed: kubeadm was started again after it had begun to change the
	// control plane, so that the snapshot is older than this attempt.
	Resumed bool `json:"resumed,omitempty"`
}

// newIntent is of a kubeadm that is about to start on a node on which it has
// changed nothing.
func newIntent(ctx context.Context, env Env, mode string, s *snapshot) (*intent, error) {
	i := &intent{Mode: mode, Version: env.Bundle.Manifest.KubernetesVersion, Started: env.Clock.Now().UTC(), Run: path.Base(env.Record.Path()), Snapshot: s}
	var err error
	if i.Backups, err = kubeadmBackups(env.Host.FS, backupPrefix); err != nil {
		return nil, err
	}
	i.Manifests, err = manifestDigests(ctx, env.Host.FS)
	return i, err
}

// onItsWay tells whether the kubeadm that was started for this version has
// begun to change the control plane. It makes its directories for backups as
// the first thing after its preflight checks, and before any manifest.
func (i *intent) onItsWay(ctx context.Context, env Env) (bool, error) {
	if !i.resumes(env) {
		return false, nil
	}
	made, err := i.made(env.Host.FS, backupPrefix)
	if err != nil || len(made) > 0 {
		return true, err
	}
	now, err := manifestDigests(ctx, env.Host.FS)
	return !maps.Equal(now, i.Manifests), err
}

func manifestDigests(ctx context.Context, host hostexec.FS) (map[string]string, error) {
	var files []string
	for _, name := range controlPlane() {
		files = append(files, manifestPath(name))
	}
	return digests(ctx, host, files...)
}

// loadIntent returns nil where every kubeadm that was started has finished.
func loadIntent(host hostexec.FS) (*intent, error) {
	data, err := host.ReadFile(startedFile)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil //nolint:nilnil // it is optional
	}
	if err != nil {
		return nil, err
	}
	var i intent
	if err := json.Unmarshal(data, &i); err != nil {
		return nil, &HintError{
			Err:  fmt.Errorf("read %s: %w", startedFile, err),
			Hint: "the record of a kubeadm that was started is damaged: bring `kubeadm upgrade` to its end by hand, then rm " + startedFile,
		}
	}
	return &i, nil
}

// save is durable, and takes the place of an intent that was there.
func (i *intent) save(ctx context.Context, host hostexec.FS) error {
	data, err := json.MarshalIndent(i, "", "  ")
	if err != nil {
		return err
	}
	return host.WriteFile(ctx, startedFile, append(data, '\n'), 0o600)
}

// resumes tells whether what was started is what this bundle is for: the same
// command brings it to its end.
func (i *intent) resumes(env Env) bool {
	return i != nil && i.Version == env.Bundle.Manifest.KubernetesVersion
}

// Beginnings of the names of what kubeadm keeps of its own in kubeadmTmpDir,
// and never removes.
const (
	backupPrefix         = "kubeadm-backup-"
	manifestBackupPrefix = backupPrefix + "manifests-"
	etcdBackupPrefix     = backupPrefix + "etcd-"
)

// kubeadmBackups are the directories with this beginning.
func kubeadmBackups(host hostexec.FS, prefix string) ([]string, error) {
	entries, err := host.ReadDir(kubeadmTmpDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var dirs []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), prefix) {
			dirs = append(dirs, path.Join(kubeadmTmpDir, e.Name()))
		}
	}
	return dirs, nil
}

// made are the directories with this beginning that kubeadm has made since it
// was started. They are told by name, not by time: the names hold kubeadm's
// local time.
func (i *intent) made(host hostexec.FS, prefix string) ([]string, error) {
	dirs, err := kubeadmBackups(host, prefix)
	return slices.DeleteFunc(dirs, func(d string) bool { return slices.Contains(i.Backups, d) }), err
}
