package steps

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"path"
	"strings"

	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
	"sigs.k8s.io/yaml"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

// lost is a file that a killed kubeadm has taken away, or left without its
// content: kubeadm renames the old manifest away before it renames the new one
// in, and fsyncs neither these nor the kubelet's configuration. Backup is
// kubeadm's own, "" without one; doubt is why it may not be what was lost.
type lost struct{ path, backup, doubt string }

// lostFiles finds what a killed kubeadm has left missing or unreadable.
func lostFiles(ctx context.Context, env Env) ([]lost, error) {
	fs := env.Host.FS
	var all []lost
	check := func(file, backups string, readable func([]byte) error) error {
		data, err := fs.ReadFile(file)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if err == nil && readable(data) == nil {
			return nil
		}
		backup, err := newestBackup(fs, backups, path.Base(file))
		if err == nil {
			all = append(all, lost{path: file, backup: backup})
		}
		return err
	}
	readable, err := kubeletConfigCheck(ctx, env)
	if err != nil {
		return nil, err
	}
	if err := check(kubeletConfig, "kubeadm-kubelet-config-", readable); err != nil {
		return nil, err
	}
	if env.Node.Role == Worker {
		return all, ownBackups(env, all)
	}
	for _, name := range controlPlane() {
		if err := check(manifestPath(name), "kubeadm-backup-manifests-", func(data []byte) error {
			_, err := parseStaticPod(name, data)
			return err
		}); err != nil {
			return nil, err
		}
	}
	if err := ownBackups(env, all); err != nil {
		return nil, err
	}
	if all, err = withoutExternalEtcd(fs, all); err != nil {
		return nil, err
	}
	if err := weighBackups(ctx, env, all); err != nil {
		return nil, err
	}
	return all, ownBackups(env, all)
}

// ownBackups takes the originals of a run that has started kubeadm where
// kubeadm's backups are missing or in doubt.
func ownBackups(env Env, all []lost) error {
	started, err := loadIntent(env.Host.FS)
	if err != nil || started == nil {
		return err
	}
	history, err := env.Record.Journal().History()
	if err != nil {
		return err
	}
	for i, l := range all {
		if l.backup != "" && l.doubt == "" {
			continue
		}
		if k, there := history.kept(l.path); there && k.Before != absent {
			all[i] = lost{path: l.path, backup: backupPath(env, l.path)}
		}
	}
	return nil
}

// kubeletConfigCheck is what tells a whole KubeletConfiguration. kubeadm writes
// it in its place: after an interrupted one, a file that ends in the middle of a
// line is half of one, even where it can be read.
func kubeletConfigCheck(ctx context.Context, env Env) (func([]byte) error, error) {
	started, err := loadIntent(env.Host.FS)
	if err != nil || started == nil {
		return parseKubeletConfig, err
	}
	history, err := env.Record.Journal().History()
	if err != nil {
		return nil, err
	}
	now, err := digestOrAbsent(ctx, env.Host.FS, kubeletConfig)
	if k, there := history.kept(kubeletConfig); err != nil || !there || k.Before == now {
		return parseKubeletConfig, err
	}
	return func(data []byte) error {
		if !strings.HasSuffix(string(data), "\n") {
			return errors.New("it ends in the middle of a line")
		}
		return parseKubeletConfig(data)
	}, nil
}

// withoutExternalEtcd takes etcd's manifest off the list where etcd is no
// static pod of this node. An old backup does not make it one.
func withoutExternalEtcd(fs hostexec.FS, all []lost) ([]lost, error) {
	var kept []lost
	for _, l := range all {
		if l.path == manifestPath(etcdName) {
			local, err := localEtcd(fs)
			if err != nil {
				return nil, err
			}
			if l.backup == "" || !local {
				continue
			}
		}
		kept = append(kept, l)
	}
	return kept, nil
}

// localEtcd tells whether the API server's etcd is on this node's loopback, as
// kubeadm's stacked etcd is. Without the manifest its newest backup is asked.
func localEtcd(fs hostexec.FS) (bool, error) {
	file := manifestPath(kubeAPIServer)
	p, err := readStaticPod(fs, kubeAPIServer, file)
	if err != nil {
		if file, err = newestBackup(fs, "kubeadm-backup-manifests-", kubeAPIServer+".yaml"); err != nil || file == "" {
			return false, err
		}
		if p, err = readStaticPod(fs, kubeAPIServer, file); err != nil {
			return false, err
		}
	}
	for _, server := range strings.Split(p.flag("etcd-servers"), ",") {
		if isLoopback(server) {
			return true, nil
		}
	}
	return false, nil
}

func isLoopback(rawURL string) bool {
	u, err := url.Parse(rawURL)
	if err != nil {
		return false
	}
	addr, err := netip.ParseAddr(u.Hostname())
	return u.Hostname() == "localhost" || err == nil && addr.IsLoopback()
}

// newestBackup is the newest of kubeadm's backups of a file, "" without any:
// /etc/kubernetes/tmp/PREFIX2026-11-21-10-57-12/NAME.
func newestBackup(fs hostexec.FS, prefix, name string) (string, error) {
	entries, err := fs.ReadDir(kubeadmTmpDir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	newest := ""
	for _, e := range entries { // sorted by name, and so by time
		if !strings.HasPrefix(e.Name(), prefix) {
			continue
		}
		file := path.Join(kubeadmTmpDir, e.Name(), name)
		info, err := fs.Stat(file)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return "", err
		}
		if info.Mode().IsRegular() && info.Size() > 0 {
			newest = file
		}
	}
	return newest, nil
}

func parseKubeletConfig(data []byte) error {
	var c kubeletv1beta1.KubeletConfiguration
	if err := yaml.Unmarshal(data, &c); err != nil {
		return err
	}
	if c.Kind != "KubeletConfiguration" {
		return errors.New("not a KubeletConfiguration")
	}
	return nil
}

// lostBlocks are the reasons not to mend: a file without a backup or with a
// doubtful one, and more
// manifests away than one killed kubeadm can have taken, which somebody else
// must have moved on purpose.
func lostBlocks(all []lost) []Block {
	var blocks []Block
	var away []lost
	for _, l := range all {
		if l.backup == "" {
			blocks = append(blocks, Block{
				Reason: l.path + " is missing or damaged, and kubeadm kept no backup of it",
				Hint:   "put " + l.path + " back from a backup of the node",
			})
		} else if l.doubt != "" {
			blocks = append(blocks, Block{
				Reason: l.path + " is missing or damaged, and kubeadm's newest backup may be an old one: " + l.doubt,
				Hint:   "read " + l.backup + "; if it is what was lost: cp " + l.backup + " " + l.path,
			})
		} else if path.Dir(l.path) == manifestsDir {
			away = append(away, l)
		}
	}
	if len(away) > 1 {
		for _, l := range away {
			blocks = append(blocks, Block{
				Reason: l.path + " is missing or damaged, and it is not the only one: that is not an interrupted kubeadm's doing",
				Hint:   "find out who moved it; to put kubeadm's backup back: cp " + l.backup + " " + l.path,
			})
		}
	}
	return blocks
}

// mend puts back what a killed kubeadm took away. It is idempotent.
func mend(ctx context.Context, env Env, all []lost) error {
	if blocks := lostBlocks(all); len(blocks) > 0 {
		return &BlockedError{Blocks: blocks}
	}
	history, err := env.Record.Journal().History()
	if err != nil {
		return err
	}
	for _, l := range all {
		env.Log.Warn("putting back what an interrupted kubeadm took away", "file", l.path, "backup", l.backup)
		if err := l.putBack(ctx, env, history); err != nil {
			return fmt.Errorf("put %s back: %w", l.path, err)
		}
	}
	return nil
}

// putBack takes the run's own original where it is the same: kubeadm's backup has
// lost its times and attributes.
func (l lost) putBack(ctx context.Context, env Env, history History) error {
	if k, there := history.kept(l.path); there {
		digest, err := digestOrAbsent(ctx, env.Host.FS, l.backup)
		if err != nil {
			return err
		}
		if digest == k.Before {
			return putBack(ctx, env, k.Kept)
		}
	}
	return env.Host.FS.CopyFile(ctx, l.backup, l.path)
}
