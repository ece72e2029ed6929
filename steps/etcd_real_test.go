package steps

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

// realEtcd is etcd itself, in this process.
type realEtcd struct {
	t      *testing.T
	server *embed.Etcd
	client *clientv3.Client
	peer   string
}

// startEtcd starts the member node-1 on a data directory.
func startEtcd(t *testing.T, dir, peer string) *realEtcd {
	t.Helper()
	server, client, err := runEtcd(dir, peer)
	if err != nil {
		t.Fatal(err)
	}
	e := &realEtcd{t: t, server: server, client: client, peer: server.Config().AdvertisePeerUrls[0].String()}
	t.Cleanup(e.stop)
	return e
}

// runEtcd waits until etcd is ready. peer is "" for any address.
func runEtcd(dir, peer string) (*embed.Etcd, *clientv3.Client, error) {
	config := embed.NewConfig()
	config.Name, config.Dir, config.Logger, config.ZapLoggerBuilder = testNode, dir, "zap", embed.NewZapLoggerBuilder(zap.NewNop())
	listen, err := freeURL()
	if err != nil {
		return nil, nil, err
	}
	peers, err := freeURL()
	if err == nil && peer != "" {
		peers, err = url.Parse(peer)
	}
	if err != nil {
		return nil, nil, err
	}
	config.ListenClientUrls, config.AdvertiseClientUrls = []url.URL{*listen}, []url.URL{*listen}
	config.ListenPeerUrls, config.AdvertisePeerUrls = []url.URL{*peers}, []url.URL{*peers}
	config.InitialCluster = testNode + "=" + peers.String()
	server, err := embed.StartEtcd(config)
	if err != nil {
		return nil, nil, err
	}
	select {
	case <-server.Server.ReadyNotify():
	case <-time.After(time.Minute):
		server.Close()
		return nil, nil, errors.New("etcd is not ready after a minute")
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{listen.String()}, Logger: zap.NewNop()})
	if err != nil {
		server.Close()
	}
	return server, client, err
}

func freeURL() (*url.URL, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // a test's
	if err != nil {
		return nil, err
	}
	return &url.URL{Scheme: "http", Host: l.Addr().String()}, l.Close()
}

func (e *realEtcd) stop() {
	if e.client != nil {
		e.client.Close()
		e.client = nil
	}
	if e.server != nil {
		e.server.Close()
		e.server = nil
	}
}

func (e *realEtcd) put(key, value string) int64 {
	e.t.Helper()
	answer, err := e.client.Put(e.t.Context(), key, value)
	if err != nil {
		e.t.Fatal(err)
	}
	return answer.Header.Revision
}

func (e *realEtcd) get(key string) string {
	e.t.Helper()
	answer, err := e.client.Get(e.t.Context(), key)
	if err != nil {
		e.t.Fatal(err)
	}
	if len(answer.Kvs) == 0 {
		return ""
	}
	return string(answer.Kvs[0].Value)
}

// snapshotOf is a stream as SnapshotWithVersion gives it, whole.
func snapshotOf(ctx context.Context, client *clientv3.Client) ([]byte, error) {
	answer, err := client.SnapshotWithVersion(ctx)
	if err != nil {
		return nil, err
	}
	defer answer.Snapshot.Close()
	return io.ReadAll(answer.Snapshot)
}

// realDatabase is etcd's database with one key, without the digest at its end.
func realDatabase(dir string) ([]byte, error) {
	server, client, err := runEtcd(dir, "")
	if err != nil {
		return nil, err
	}
	defer server.Close()
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if _, err := client.Put(ctx, "/registry/before", "there"); err != nil {
		return nil, err
	}
	data, err := snapshotOf(ctx, client)
	if err != nil {
		return nil, err
	}
	return data[:len(data)-sha256.Size], nil
}

// withDigest is a snapshot as etcd sends it.
func withDigest(data []byte) string {
	sum := sha256.Sum256(data)
	return string(data) + string(sum[:])
}

// etcd itself, on what its snapshot was restored to: what was written before is
// there, what was written after is not, and no revision that was given out
// comes again.
func TestRestoredByEtcd(t *testing.T) {
	root := t.TempDir()
	fs := hostexec.NewFS(root)
	old := startEtcd(t, filepath.Join(root, "var/lib/etcd"), "")
	old.put("/registry/before", "there")
	seen := old.put("/registry/changed", "old")
	stream, err := snapshotOf(t.Context(), old.client)
	if err != nil {
		t.Fatal(err)
	}
	later := old.put("/registry/changed", "new")
	old.put("/registry/after", "lost")
	old.stop()

	env := Env{Host: hostexec.Host{FS: fs}, Record: NewRecord(fs, "run"), Log: slog.New(slog.DiscardHandler), Clock: SystemClock()}
	file := env.Record.Path(snapshotFile)
	if err := errors.Join(env.Record.Init(), fs.WriteFile(t.Context(), file, stream, 0o600)); err != nil {
		t.Fatal(err)
	}
	r := &summed{r: bytes.NewReader(stream), h: sha256.New()}
	if _, err := io.Copy(io.Discard, r); err != nil {
		t.Fatal(err)
	}
	manifest := strings.ReplaceAll(manifestOf(etcdName, oldVersion, "x"), "https://192.0.2.1:2380", old.peer)
	kept := backupPath(env, manifestPath(etcdName))
	if err := errors.Join(fs.MkdirAll(path.Dir(kept), 0o700), fs.WriteFile(t.Context(), kept, []byte(manifest), 0o600)); err != nil {
		t.Fatal(err)
	}
	restore := &etcdRestore{
		Snapshot: snapshot{File: file, SHA256: hex.EncodeToString(r.tail), Size: int64(len(stream))},
		Member:   etcdMemberDir, Work: "/var/lib/etcd/upgrader-restore", Aside: "/var/lib/etcd/aside",
	}
	if names, err := storedMembers(fs, file); err != nil || len(names) != 1 || names[0] != testNode {
		t.Fatalf("members %v, error %v", names, err)
	}
	for range 2 { // once more, as after a crash
		if err := (wayBack{}).unpack(t.Context(), env, restore); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := restore.exchangeData(env); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(filepath.Join(root, restore.Aside, "snap/db")); err != nil {
		t.Error(err)
	}

	again := startEtcd(t, filepath.Join(root, "var/lib/etcd"), old.peer)
	for key, want := range map[string]string{"/registry/before": "there", "/registry/changed": "old", "/registry/after": ""} {
		if got := again.get(key); got != want {
			t.Errorf("%s: %q, want %q", key, got, want)
		}
	}
	if now := again.put("/registry/next", "x"); now <= later+revisionBump/2 {
		t.Errorf("revision %d after %d", now, later)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	w := <-again.client.Watch(ctx, "/registry/", clientv3.WithPrefix(), clientv3.WithRev(seen))
	if !errors.Is(w.Err(), rpctypes.ErrCompacted) {
		t.Errorf("a watch from an old revision: %v", w.Err())
	}
}

// A disk that is full, and a file that is none of etcd's, are errors and no end
// of the process.
func TestRestoreOfNonsense(t *testing.T) {
	fs := hostexec.NewFS(t.TempDir())
	env := Env{Host: hostexec.Host{FS: fs}, Record: NewRecord(fs, "run"), Log: slog.New(slog.DiscardHandler), Clock: SystemClock()}
	stream := boltFile(t, "key", "meta", "cluster")
	stream = []byte(withDigest(stream))
	file := env.Record.Path(snapshotFile)
	kept := backupPath(env, manifestPath(etcdName))
	for p, content := range map[string]string{file: string(stream), kept: manifestOf(etcdName, oldVersion, "x")} {
		if err := errors.Join(fs.MkdirAll(path.Dir(p), 0o700), fs.WriteFile(t.Context(), p, []byte(content), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	r := &etcdRestore{Snapshot: snapshot{File: file, SHA256: hex.EncodeToString(stream[len(stream)-32:])}, Member: etcdMemberDir, Work: "/var/lib/etcd/work"}
	err := (wayBack{}).unpack(t.Context(), env, r)
	if err == nil || !strings.Contains(err.Error(), "etcd's library gave up") {
		t.Errorf("error %v", err)
	}
}
