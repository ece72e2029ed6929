package steps

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

// fakeEtcd is a member's Maintenance service and its list of members, behind TLS
// that asks for a client certificate, as kubeadm's etcd does. Every other call is
// refused by gRPC.
type fakeEtcd struct {
	etcdserverpb.UnimplementedMaintenanceServer
	etcdserverpb.UnimplementedClusterServer
	url string

	mu        sync.Mutex
	status    etcdserverpb.StatusResponse
	alarms    []*etcdserverpb.AlarmMember
	db        []byte
	digest    []byte // nil: the database's
	snapshots int
	members   []*etcdserverpb.Member
}

func newFakeEtcd(t *testing.T, ca *testCA) *fakeEtcd {
	t.Helper()
	e := &fakeEtcd{
		status: etcdserverpb.StatusResponse{Version: "3.6.6", DbSize: 4096, Leader: 7},
		db:     boltFile(t, "key", "meta", "cluster"),

		members: []*etcdserverpb.Member{{Name: testNode}},
	}
	cert, key := ca.issue(t, "etcd")
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	clients := x509.NewCertPool()
	clients.AddCert(ca.cert)
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // a test's
	if err != nil {
		t.Fatal(err)
	}
	e.url = "https://" + l.Addr().String()
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients, MinVersion: tls.VersionTLS12,
	})))
	etcdserverpb.RegisterMaintenanceServer(server, e)
	etcdserverpb.RegisterClusterServer(server, e)
	go server.Serve(l) //nolint:errcheck // ends with the test
	t.Cleanup(server.Stop)
	return e
}

func (e *fakeEtcd) Status(context.Context, *etcdserverpb.StatusRequest) (*etcdserverpb.StatusResponse, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.status
	return &s, nil
}

func (e *fakeEtcd) Alarm(context.Context, *etcdserverpb.AlarmRequest) (*etcdserverpb.AlarmResponse, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return &etcdserverpb.AlarmResponse{Alarms: e.alarms}, nil
}

func (e *fakeEtcd) MemberList(context.Context, *etcdserverpb.MemberListRequest) (*etcdserverpb.MemberListResponse, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return &etcdserverpb.MemberListResponse{Members: e.members}, nil
}

func (e *fakeEtcd) Snapshot(_ *etcdserverpb.SnapshotRequest, stream etcdserverpb.Maintenance_SnapshotServer) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.snapshots++
	sum := sha256.Sum256(e.db)
	digest := sum[:]
	if e.digest != nil {
		digest = e.digest
	}
	for rest := e.db; len(rest) > 0; {
		n := min(len(rest), 32<<10)
		if err := stream.Send(&etcdserverpb.SnapshotResponse{Blob: rest[:n], Version: "3.6.0"}); err != nil {
			return err
		}
		rest = rest[n:]
	}
	return stream.Send(&etcdserverpb.SnapshotResponse{Blob: digest})
}

// boltFile is a database with these buckets and some keys in each.
func boltFile(t *testing.T, buckets ...string) []byte {
	t.Helper()
	file := filepath.Join(t.TempDir(), "db")
	db, err := bolt.Open(file, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Update(func(tx *bolt.Tx) error {
		for _, name := range buckets {
			b, err := tx.CreateBucket([]byte(name))
			if err != nil {
				return err
			}
			for i := range 500 {
				if err := b.Put([]byte{byte(i >> 8), byte(i)}, make([]byte, 100)); err != nil {
					return err
				}
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func (e *fakeEtcd) nospace() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.alarms = []*etcdserverpb.AlarmMember{{MemberID: 42, Alarm: etcdserverpb.AlarmType_NOSPACE}}
	e.status.Errors = []string{"memberID:42 alarm:NOSPACE"}
}
