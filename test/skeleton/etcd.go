package skeleton

import (
	"context"
	"crypto/sha256"
	"net"
	"os"
	"path/filepath"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
)

// etcdData makes the data directory of a control plane's member.
func (n *Node) etcdData() error {
	file := n.in(etcdData + "/member/snap/db")
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	return database(file)
}

// database writes one with etcd's buckets, and nothing in them.
func database(file string) error {
	db, err := bolt.Open(file, 0o600, &bolt.Options{NoSync: true})
	if err != nil {
		return err
	}
	if err := db.Update(func(tx *bolt.Tx) error {
		for _, name := range []string{"key", "meta", "cluster"} {
			if _, err := tx.CreateBucket([]byte(name)); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return err
	}
	return db.Close()
}

// Etcd is a healthy member for as many nodes as there are: it answers what an
// upgrade asks and keeps nothing.
type Etcd struct {
	etcdserverpb.UnimplementedMaintenanceServer
	etcdserverpb.UnimplementedClusterServer
	URL    string
	db     []byte
	server *grpc.Server
}

// StartEtcd listens on a port of its own. dir is for its database.
func StartEtcd(dir string) (*Etcd, error) {
	file := filepath.Join(dir, "etcd.db")
	if err := database(file); err != nil {
		return nil, err
	}
	db, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	listener, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	e := &Etcd{URL: "http://" + listener.Addr().String(), db: db, server: grpc.NewServer()}
	etcdserverpb.RegisterMaintenanceServer(e.server, e)
	etcdserverpb.RegisterClusterServer(e.server, e)
	go e.server.Serve(listener) //nolint:errcheck // ends with Stop
	return e, nil
}

// Stop ends it.
func (e *Etcd) Stop() { e.server.Stop() }

// Status implements etcd's Maintenance service.
func (e *Etcd) Status(context.Context, *etcdserverpb.StatusRequest) (*etcdserverpb.StatusResponse, error) {
	return &etcdserverpb.StatusResponse{Version: "3.6.6", DbSize: int64(len(e.db)), Leader: 7}, nil
}

// Alarm implements etcd's Maintenance service: there is none.
func (e *Etcd) Alarm(context.Context, *etcdserverpb.AlarmRequest) (*etcdserverpb.AlarmResponse, error) {
	return &etcdserverpb.AlarmResponse{}, nil
}

// MemberList implements etcd's Cluster service: it is the only one.
func (e *Etcd) MemberList(context.Context, *etcdserverpb.MemberListRequest) (*etcdserverpb.MemberListResponse, error) {
	return &etcdserverpb.MemberListResponse{Members: []*etcdserverpb.Member{{Name: NodeName}}}, nil
}

// Snapshot implements etcd's Maintenance service.
func (e *Etcd) Snapshot(_ *etcdserverpb.SnapshotRequest, stream etcdserverpb.Maintenance_SnapshotServer) error {
	if err := stream.Send(&etcdserverpb.SnapshotResponse{Blob: e.db, Version: "3.6.0"}); err != nil {
		return err
	}
	sum := sha256.Sum256(e.db)
	return stream.Send(&etcdserverpb.SnapshotResponse{Blob: sum[:]})
}
