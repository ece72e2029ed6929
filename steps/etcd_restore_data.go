package steps

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
	etcdutl "go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

// revisionBump is by how much etcd's revision is raised over the snapshot's, so
// that it never goes back for who watches or caches: what etcd advises
// (https://etcd.io/docs/v3.6/op-guide/recovery/#restoring-with-revision-bump).
const revisionBump = 1_000_000_000

// unpack makes a member's data of the snapshot, durably, beside the one that is
// in use. What an interrupted attempt has left is made anew.
func (b wayBack) unpack(ctx context.Context, env Env, r *etcdRestore) error {
	host := env.Host.FS
	if err := r.Snapshot.sound(ctx, host); err != nil {
		return err
	}
	p, err := readStaticPod(host, etcdName, backupPath(env, manifestPath(etcdName)))
	if err != nil {
		return err
	}
	if err := host.RemoveAll(r.Work); err != nil {
		return err
	}
	if err := host.MkdirAll(r.Work, 0o700); err != nil {
		return err
	}
	real, err := host.Resolve(r.Work)
	if err != nil {
		return err
	}
	file, err := host.Resolve(r.Snapshot.File)
	if err != nil {
		return err
	}
	name, peers := p.flag("name"), p.flag("initial-advertise-peer-urls")
	config := etcdutl.RestoreConfig{
		SnapshotPath: file, OutputDataDir: real,
		Name: name, PeerURLs: strings.Split(peers, ","), InitialCluster: memberOf(name, peers),
		InitialClusterToken: p.flag("initial-cluster-token"),
		RevisionBump:        revisionBump, MarkCompacted: true,
	}
	if config.InitialClusterToken == "" {
		config.InitialClusterToken = "etcd-cluster" // etcd's default
	}
	env.Log.Info("unpacking etcd's snapshot", "file", r.Snapshot.File, "to", r.Work)
	if err := env.change("restore", r.Work, func() error { return restoreSnapshot(config) }); err != nil {
		return fmt.Errorf("restore etcd's snapshot %s: %w", r.Snapshot.File, err)
	}
	if there, err := host.Exists(r.Member); err != nil {
		return err
	} else if there { // as the one before: etcd need not run as root
		if err := host.OwnAs(path.Join(r.Work, "member"), r.Member); err != nil {
			return err
		}
	}
	return host.SyncFS(r.Work)
}

// memberOf is --initial-cluster of one member with all its URLs.
func memberOf(name, peers string) string {
	var all []string
	for _, u := range strings.Split(peers, ",") {
		all = append(all, name+"="+u)
	}
	return strings.Join(all, ",")
}

// restoreSnapshot is `etcdutl snapshot restore`. etcd's storage ends the process
// or panics where a disk is full; here it is an error.
func restoreSnapshot(config etcdutl.RestoreConfig) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("etcd's library gave up: %v", r)
		}
	}()
	log := zap.NewNop().WithOptions(zap.WithFatalHook(zapcore.WriteThenPanic))
	return etcdutl.NewV3(log).Restore(config)
}

// exchangeData takes etcd's manifest away, and puts what was unpacked in the
// place of its data, which is kept aside. It is idempotent; the two directories
// are never both gone.
func (r *etcdRestore) exchangeData(env Env) error {
	host := env.Host.FS
	restored := path.Join(r.Work, "member")
	there, err := existing(host, r.Member, r.Aside, restored)
	if err != nil {
		return err
	}
	has := func(p string) bool {
		for _, t := range there {
			if t == p {
				return true
			}
		}
		return false
	}
	if !has(restored) {
		if has(r.Member) {
			return nil // done before
		}
		return &HintError{
			Err:  fmt.Errorf("neither %s nor %s is there: somebody has removed them", r.Member, restored),
			Hint: "etcd's data of before the restore is in " + r.Aside + "; the snapshot is " + r.Snapshot.File + ", see " + etcdRecovery,
		}
	}
	if err := host.Remove(manifestPath(etcdName)); err != nil {
		return err
	}
	switch {
	case has(r.Member) && has(r.Aside):
		return &HintError{
			Err:  fmt.Errorf("both %s and %s are there: an etcd was started while its data was exchanged", r.Member, r.Aside),
			Hint: "see which is the newer one, move the other away, and " + r.block().Hint,
		}
	case has(r.Member):
		if err := notInUse(host, r.Member); err != nil {
			return err
		}
		env.Log.Warn("etcd's data is kept aside", "of", r.Member, "to", r.Aside)
		if err := host.Move(r.Member, r.Aside); err != nil {
			return err
		}
	}
	return host.Move(restored, r.Member)
}

// notInUse is nil when no etcd has the database open.
func notInUse(host hostexec.FS, member string) error {
	file := path.Join(member, "snap", "db")
	if there, err := host.Exists(file); err != nil || !there {
		return err
	}
	real, err := host.Resolve(file)
	if err != nil {
		return err
	}
	db, err := openDB(real)
	switch {
	case err == nil:
		return db.Close()
	case errors.Is(err, bolterrors.ErrTimeout):
		return &HintError{Err: fmt.Errorf("%s is in use: an etcd still runs", file), Hint: "crictl ps --name etcd; lsof " + file}
	default:
		return nil // damaged, which is no reason to keep it in place
	}
}

// openDB opens a database to read it. A damaged one may make bbolt panic.
func openDB(real string) (db *bolt.DB, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the database is damaged: %v", r)
		}
	}()
	return bolt.Open(real, 0o400, &bolt.Options{ReadOnly: true, Timeout: etcdAnswer})
}

// keepAside moves etcd's data of before the restore into the run's record, which
// goes when old runs go. On another file system it stays where it is.
func (r *etcdRestore) keepAside(env Env) error {
	host := env.Host.FS
	if err := host.RemoveAll(r.Work); err != nil {
		return err
	}
	if there, err := host.Exists(r.Aside); err != nil || !there {
		return err
	}
	to := env.Record.Path(path.Base(r.Aside))
	if err := host.Move(r.Aside, to); err != nil {
		env.Log.Warn("etcd's data of before the restore stays: remove it when it is not needed", "dir", r.Aside, "reason", err.Error())
		return nil
	}
	env.Log.Info("etcd's data of before the restore is kept with the run", "dir", to)
	return nil
}
