package steps

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

// etcdAnswer is how long a member may take for one answer.
const etcdAnswer = 5 * time.Second

// etcdMember is the etcd that runs as a static pod of this node.
type etcdMember struct {
	endpoint string
	dataDir  string
	tls      *tls.Config
}

// localMember is this node's member, nil where etcd is no static pod of this
// node. Where it listens and whom it trusts is read from its manifest.
func localMember(fs hostexec.FS) (*etcdMember, error) {
	p, err := readStaticPod(fs, etcdName, manifestPath(etcdName))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil //nolint:nilnil // external etcd is no error
	}
	if err != nil {
		return nil, err
	}
	m := &etcdMember{dataDir: p.flag("data-dir")}
	if m.dataDir == "" {
		m.dataDir = path.Dir(etcdMemberDir)
	}
	for _, u := range strings.Split(p.flag("listen-client-urls"), ",") {
		if m.endpoint == "" || isLoopback(u) && !isLoopback(m.endpoint) {
			m.endpoint = u
		}
	}
	if m.endpoint == "" {
		return nil, fmt.Errorf("%s: no --listen-client-urls", manifestPath(etcdName))
	}
	if !strings.HasPrefix(m.endpoint, "https:") {
		return m, nil
	}
	m.tls, err = etcdTLS(fs, p)
	return m, err
}

// etcdTLS uses the certificate that kubeadm makes for health checks, else the
// server's, which is good for clients too.
func etcdTLS(fs hostexec.FS, p staticPod) (*tls.Config, error) {
	ca, err := fs.ReadFile(p.flag("trusted-ca-file"))
	if err != nil {
		return nil, fmt.Errorf("etcd's CA: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		return nil, fmt.Errorf("etcd's CA: no certificate in %s", p.flag("trusted-ca-file"))
	}
	dir := path.Dir(p.flag("trusted-ca-file"))
	certFile, keyFile := path.Join(dir, "healthcheck-client.crt"), path.Join(dir, "healthcheck-client.key")
	if there, err := fs.Exists(certFile); err != nil {
		return nil, err
	} else if !there {
		certFile, keyFile = p.flag("cert-file"), p.flag("key-file")
	}
	cert, err := fs.ReadFile(certFile)
	if err != nil {
		return nil, fmt.Errorf("etcd client certificate: %w", err)
	}
	key, err := fs.ReadFile(keyFile)
	if err != nil {
		return nil, fmt.Errorf("etcd client key: %w", err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("etcd client certificate %s: %w", certFile, err)
	}
	return &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}, nil
}

// dial does not wait for the member; the calls do.
func (m *etcdMember) dial(ctx context.Context) (*clientv3.Client, error) {
	client, err := clientv3.New(clientv3.Config{
		Context: ctx, Endpoints: []string{m.endpoint}, TLS: m.tls, DialTimeout: etcdAnswer, Logger: zap.NewNop(),
	})
	if err != nil {
		return nil, fmt.Errorf("connect to etcd at %s: %w", m.endpoint, err)
	}
	return client, nil
}

// etcdHealth is what the member says of itself.
type etcdHealth struct {
	version string
	size    int64    // of its database, in bytes
	ill     []string // alarms and errors; none: healthy
}

// health asks the member; an error means that it does not answer.
func (m *etcdMember) health(ctx context.Context) (etcdHealth, error) {
	client, err := m.dial(ctx)
	if err != nil {
		return etcdHealth{}, err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, etcdAnswer)
	defer cancel()
	status, err := client.Status(ctx, m.endpoint)
	if err != nil {
		return etcdHealth{}, fmt.Errorf("status of etcd at %s: %w", m.endpoint, err)
	}
	h := etcdHealth{version: status.Version, size: status.DbSize}
	if status.Leader == 0 {
		h.ill = append(h.ill, "no leader")
	}
	if status.IsLearner {
		h.ill = append(h.ill, "still a learner")
	}
	alarms, err := client.AlarmList(ctx)
	if err != nil {
		return h, fmt.Errorf("alarms of etcd at %s: %w", m.endpoint, err)
	}
	for _, a := range alarms.Alarms {
		if a.Alarm != etcdserverpb.AlarmType_NONE {
			h.ill = append(h.ill, fmt.Sprintf("alarm %s of member %x", a.Alarm, a.MemberID))
		}
	}
	if len(alarms.Alarms) == 0 { // they are among the errors too
		h.ill = append(h.ill, status.Errors...)
	}
	return h, nil
}

// blocks are the reasons not to upgrade a control plane on this member. Where
// the runtime is down too, that is an error: an earlier step may mend it.
func (m *etcdMember) blocks(ctx context.Context, env Env) ([]Block, error) {
	var h etcdHealth
	if err := within(ctx, env, apiLook, time.Second, func(ctx context.Context) (err error) {
		h, err = m.health(ctx)
		return err
	}); err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		client, down := env.Runtime(ctx)
		if down == nil {
			_, down = client.Version(ctx)
			down = errors.Join(down, client.Close())
		}
		if down != nil {
			return nil, errors.Join(err, down)
		}
		return []Block{{Reason: "etcd does not answer: " + err.Error(), Hint: "crictl ps -a --name etcd; crictl logs of its container"}}, nil
	}
	var blocks []Block
	if len(h.ill) > 0 {
		blocks = append(blocks, Block{
			Reason: "etcd is not healthy: " + strings.Join(h.ill, ", "),
			Hint:   "etcdctl endpoint status; etcdctl alarm list",
		})
	}
	blocks = append(blocks, tooOldEtcd(h.version, env)...)
	space, err := m.spaceBlocks(env.Host.FS, env.Record.Path(), h.size)
	return append(blocks, space...), err
}

// tooOldEtcd: kubeadm 1.34 brings etcd 3.6, and a 3.5 below 3.5.24 may carry
// members into it that were removed (https://etcd.io/blog/2025/zombie_members_upgrade/).
func tooOldEtcd(have string, env Env) []Block {
	target, err := version.ParseSemantic(env.Bundle.Manifest.KubernetesVersion)
	upgraded := env.Options.Kubeadm.EtcdUpgrade == nil || *env.Options.Kubeadm.EtcdUpgrade
	if err != nil || !upgraded || target.LessThan(version.MajorMinor(1, 34)) {
		return nil
	}
	v, err := version.ParseSemantic(have)
	if err != nil || v.AtLeast(version.MajorMinor(3, 5).WithPatch(24)) {
		return nil
	}
	return []Block{{
		Reason: "etcd is " + have + ": it has to be 3.5.24 or newer before it becomes 3.6",
		Hint:   "upgrade the control plane to the newest patch release of its minor version first",
	}}
}

// spaceBlocks: our snapshot, and kubeadm's copies of the data directory, one
// an attempt, which it never removes (https://github.com/kubernetes/kubernetes/issues/125357).
// What lies on one file system is added up.
func (m *etcdMember) spaceBlocks(fs hostexec.FS, record string, size int64) ([]Block, error) {
	data, err := treeSize(fs, m.dataDir)
	if err != nil {
		return nil, fmt.Errorf("measure etcd's data: %w", err)
	}
	type disk struct {
		free  hostexec.Space
		dir   string
		bytes int64
		needs []string
	}
	var disks []disk
	for _, need := range []struct {
		dir, what string
		bytes     int64
	}{
		{record, "etcd's snapshot needs", size + size/10},
		{kubeadmTmpDir, "kubeadm's copies of etcd's data need", 3 * data},
	} {
		free, err := fs.Free(need.dir)
		if err != nil {
			return nil, err
		}
		i := slices.IndexFunc(disks, func(d disk) bool { return d.free.ID == free.ID })
		if i < 0 {
			i, disks = len(disks), append(disks, disk{free: free, dir: need.dir})
		}
		disks[i].bytes += need.bytes
		disks[i].needs = append(disks[i].needs, fmt.Sprintf("%s %d MiB in %s", need.what, mib(need.bytes), need.dir))
	}
	var blocks []Block
	for _, d := range disks {
		if d.free.Bytes < uint64(d.bytes) { //nolint:gosec // sizes are not negative
			blocks = append(blocks, Block{
				Reason: fmt.Sprintf("%s, %d MiB are free there", strings.Join(d.needs, " and "), d.free.Bytes>>20),
				Hint:   "df -h " + d.dir + "; old copies of kubeadm's are in " + kubeadmTmpDir,
			})
		}
	}
	return blocks, nil
}

func mib(bytes int64) int64 { return (bytes + 1<<20 - 1) >> 20 }

// treeSize is what the files of a tree weigh together. What vanishes meanwhile
// counts nothing.
func treeSize(fs hostexec.FS, dir string) (int64, error) {
	entries, err := fs.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	var sum int64
	for _, e := range entries {
		if e.IsDir() {
			n, err := treeSize(fs, path.Join(dir, e.Name()))
			if err != nil {
				return 0, err
			}
			sum += n
		} else if info, err := e.Info(); err == nil && info.Mode().IsRegular() {
			sum += info.Size()
		}
	}
	return sum, err
}
