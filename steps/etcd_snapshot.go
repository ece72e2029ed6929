package steps

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"runtime/debug"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

// The snapshot's files in the run's record. It counts only with its record,
// which is written after it was checked.
const (
	snapshotFile   = "etcd-snapshot.db"
	snapshotRecord = "etcd-snapshot"
)

// snapshot is what is recorded of etcd's state before the upgrade.
type snapshot struct {
	File    string    `json:"file"`
	SHA256  string    `json:"sha256"` // of the database, as etcd sent it behind
	Size    int64     `json:"size"`
	Etcd    string    `json:"etcd"` // the member's version
	Taken   time.Time `json:"taken"`
	Buckets int       `json:"buckets"`
}

// takeSnapshot keeps etcd's state as it is before kubeadm changes anything.
// before is the snapshot of an upgrade that is on its way, which stays: a later
// one would be of a half-upgraded cluster. Without it, one is taken whatever an
// earlier attempt has kept: the cluster has lived on since. The file is what
// `etcdutl snapshot restore` takes. It is durable and was checked when
// takeSnapshot returns; when the stream or the database is damaged, an error is
// returned, and the last good snapshot stays.
func takeSnapshot(ctx context.Context, env Env, m *etcdMember, before *snapshot) (*snapshot, error) {
	host := env.Host.FS
	if before != nil {
		if there, err := host.Exists(before.File); err != nil || there {
			env.Log.Info("etcd's snapshot was taken before", "file", before.File, "taken", before.Taken)
			return before, err
		}
		env.Log.Warn("etcd's snapshot is gone, taking another, of a half-upgraded cluster", "file", before.File)
	}
	var older snapshot
	kept, err := env.Record.Load(snapshotRecord, &older)
	if err != nil {
		return nil, err
	}
	file := env.Record.Path(snapshotFile)
	if kept && older.File == file {
		file = env.Record.Path("again-" + snapshotFile)
	}
	s, err := m.save(ctx, env, file)
	if err != nil {
		return nil, &HintError{
			Err:  fmt.Errorf("take etcd's snapshot: %w", err),
			Hint: "crictl logs of etcd's container, df -h " + StateDir + "; then run the upgrader again",
		}
	}
	if s.Buckets, err = checkSnapshot(host, s.File); err != nil {
		err = errors.Join(fmt.Errorf("check etcd's snapshot: %w", err), host.Remove(s.File))
		return nil, &HintError{Err: err, Hint: "etcd's database is damaged: etcdutl hashkv and etcdutl check of " + m.dataDir + "/member/snap/db, and see https://etcd.io/docs/latest/op-guide/data_corruption/"}
	}
	if err := env.Record.Save(ctx, snapshotRecord, s); err != nil {
		return nil, err
	}
	env.Log.Info("took etcd's snapshot", "file", s.File, "mib", mib(s.Size), "sha256", s.SHA256[:12], "etcd", s.Etcd)
	if kept && older.File != s.File {
		env.Log.Info("removing an older snapshot of etcd", "file", older.File, "taken", older.Taken)
		return &s, host.Remove(older.File)
	}
	return &s, nil
}

// save streams the snapshot to a file; it gets its name only when the digest
// that etcd sends at the end was right.
func (m *etcdMember) save(ctx context.Context, env Env, file string) (snapshot, error) {
	if err := env.Record.Init(); err != nil {
		return snapshot{}, err
	}
	h, err := m.health(ctx)
	if err != nil {
		return snapshot{}, err
	}
	client, err := m.dial(ctx)
	if err != nil {
		return snapshot{}, err
	}
	defer client.Close()
	resp, err := client.SnapshotWithVersion(ctx)
	if err != nil {
		return snapshot{}, err
	}
	defer resp.Snapshot.Close()
	r := &summed{r: resp.Snapshot, h: sha256.New()}
	if err := env.Host.FS.Replace(ctx, hostexec.Replacement{Path: file, Content: r, Mode: 0o600}); err != nil {
		return snapshot{}, err
	}
	return snapshot{
		File: file, SHA256: hex.EncodeToString(r.tail), Size: r.n, Etcd: h.version, Taken: env.Clock.Now().UTC(),
	}, nil
}

// summed reads a stream that ends in the sha256 of all before it, and gives an
// error in the place of EOF when it does not.
type summed struct {
	r    io.Reader
	h    hash.Hash
	tail []byte // the last sha256.Size bytes seen, not yet hashed
	n    int64
}

func (s *summed) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	s.n += int64(n)
	s.tail = append(s.tail, p[:n]...)
	if extra := len(s.tail) - sha256.Size; extra > 0 {
		s.h.Write(s.tail[:extra])
		s.tail = append(s.tail[:0], s.tail[extra:]...)
	}
	if !errors.Is(err, io.EOF) {
		return n, err
	}
	// A database is made of pages, so that its digest shows in the length.
	if s.n%512 != sha256.Size {
		return n, fmt.Errorf("the stream ended after %d bytes without its digest", s.n)
	}
	if sum := s.h.Sum(nil); !bytes.Equal(sum, s.tail) {
		return n, fmt.Errorf("the stream has sha256 %x, etcd sent %x", sum, s.tail)
	}
	return n, io.EOF
}

// checkSnapshot walks every page and key of the database and returns how many
// buckets it has. etcd's own etcdutl does the same by bbolt's Check, but keeps
// every key in memory and panics on a damaged page and on a database without
// etcd's buckets.
func checkSnapshot(fs hostexec.FS, file string) (buckets int, err error) {
	real, err := fs.Resolve(file)
	if err != nil {
		return 0, err
	}
	// A page number beyond the file is a fault of memory: the file is mapped.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the database is damaged: %v", r)
		}
	}()
	db, err := bolt.Open(real, 0o400, &bolt.Options{ReadOnly: true, Timeout: etcdAnswer})
	if err != nil {
		return 0, err
	}
	defer db.Close()
	var touched byte
	err = db.View(func(tx *bolt.Tx) error {
		for _, name := range []string{"key", "meta", "cluster"} {
			if tx.Bucket([]byte(name)) == nil {
				return fmt.Errorf("not etcd's: no bucket %q", name)
			}
		}
		// Check has a goroutine of its own, whose panic nobody can recover from:
		// what makes it panic is to be found here first.
		if err := tx.ForEach(func(_ []byte, b *bolt.Bucket) error {
			buckets++
			return b.ForEach(func(_, v []byte) error {
				if len(v) > 0 {
					touched ^= v[0] ^ v[len(v)-1]
				}
				return nil
			})
		}); err != nil {
			return err
		}
		var found []error
		for e := range tx.Check() {
			if len(found) < 10 {
				found = append(found, e)
			}
		}
		return errors.Join(found...)
	})
	return buckets, err
}
