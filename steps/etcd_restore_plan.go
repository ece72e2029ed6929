package steps

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

const (
	etcdRecovery     = "https://etcd.io/docs/latest/op-guide/recovery/"
	externalEtcdHint = "stop every API server, restore the etcd cluster from a snapshot of yours, and put /etc/kubernetes back on each control plane: " +
		"https://kubernetes.io/docs/tasks/administer-cluster/configure-upgrade-etcd/#restoring-an-etcd-cluster"
)

// walRoom is what a new member takes beside its database: etcd allocates its
// log in files of 64 MiB, and one ahead.
const walRoom = 160 << 20

// planRestore looks whether the control plane can be put back by the run's
// snapshot, and how. It only reads, and names all that forbids it.
func (b wayBack) planRestore(ctx context.Context, env Env) (*etcdRestore, []Block, error) {
	host := env.Host.FS
	if b.snapshot == nil {
		return nil, []Block{{Reason: "there is no snapshot of etcd: it is no static pod of this node", Hint: externalEtcdHint}}, nil
	}
	if path.Dir(b.snapshot.File) != env.Record.Path() {
		return nil, []Block{{
			Reason: "kubeadm was started by another run, which has the originals and etcd's snapshot: " + b.snapshot.File,
			Hint:   "upgrader rollback --run-id " + path.Base(path.Dir(b.snapshot.File)) + " --restore-etcd",
		}}, nil
	}
	p, err := readStaticPod(host, etcdName, backupPath(env, manifestPath(etcdName)))
	if err != nil {
		return nil, nil, err
	}
	dir := p.flag("data-dir")
	if dir == "" {
		dir = path.Dir(etcdMemberDir)
	}
	began := env.Clock.Now().UTC()
	r := &etcdRestore{
		Schema: 1, Run: env.Options.RunID, Snapshot: *b.snapshot, Begun: began,
		Member: path.Join(dir, "member"), Work: path.Join(dir, "upgrader-restore"),
		Aside: path.Join(dir, "member-before-restore-"+began.Format("20060102-150405")),
	}
	blocks, err := b.restoreBlocks(ctx, env, r, p)
	return r, blocks, err
}

func (b wayBack) restoreBlocks(ctx context.Context, env Env, r *etcdRestore, p staticPod) ([]Block, error) {
	host := env.Host.FS
	var blocks []Block
	for _, flag := range []string{"name", "initial-advertise-peer-urls"} {
		if p.flag(flag) == "" {
			blocks = append(blocks, Block{Reason: "etcd's manifest has no --" + flag, Hint: byHand(b.snapshot.File)})
		}
	}
	if dir := p.flag("wal-dir"); dir != "" {
		blocks = append(blocks, Block{Reason: "etcd has its log in a directory of its own: --wal-dir=" + dir, Hint: byHand(b.snapshot.File)})
	}
	if err := b.snapshot.sound(ctx, host); err != nil {
		if ctx.Err() != nil {
			return nil, err
		}
		return append(blocks, Block{Reason: err.Error(), Hint: "kubeadm's copies of etcd's data are in " + kubeadmTmpDir + "; see " + etcdRecovery}), nil
	}
	members, err := b.members(ctx, env, r)
	if err != nil {
		return nil, err
	}
	if len(members) != 1 {
		blocks = append(blocks, Block{
			Reason: fmt.Sprintf("etcd has %d members (%s): one of them cannot be put back alone", len(members), strings.Join(members, ", ")),
			Hint:   byHand(b.snapshot.File),
		})
	}
	free, err := host.Free(path.Dir(r.Member))
	if err != nil {
		return nil, err
	}
	if need := b.snapshot.Size + b.snapshot.Size/5 + walRoom; free.Bytes < uint64(need) { //nolint:gosec // not negative
		blocks = append(blocks, Block{
			Reason: fmt.Sprintf("unpacking etcd's snapshot needs %d MiB in %s, %d MiB are free there", mib(need), path.Dir(r.Member), free.Bytes>>20),
			Hint:   "df -h " + path.Dir(r.Member),
		})
	}
	missing, err := b.missingImages(ctx, env)
	if err != nil {
		return nil, err
	}
	return slices.Concat(blocks, missing, b.newerKubelets(ctx, env)), nil
}

// byHand is etcd's documented way for what is not done here.
func byHand(file string) string {
	return "stop every API server and every etcd, then on each member: etcdutl snapshot restore " + file +
		" --name NAME --initial-cluster NAME=PEER-URL,… --initial-advertise-peer-urls PEER-URL --bump-revision 1000000000 --mark-compacted --data-dir NEW: " +
		etcdRecovery + " and https://kubernetes.io/docs/tasks/administer-cluster/configure-upgrade-etcd/#restoring-an-etcd-cluster"
}

// sound is nil when the snapshot's file is what was recorded.
func (s snapshot) sound(ctx context.Context, host hostexec.FS) error {
	f, err := host.Open(s.File)
	if err != nil {
		return err
	}
	defer f.Close()
	r := &summed{r: f, h: sha256.New()}
	buf := make([]byte, 1<<20)
	for err == nil && ctx.Err() == nil {
		_, err = r.Read(buf)
	}
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case !errors.Is(err, io.EOF):
		return fmt.Errorf("etcd's snapshot %s is damaged: %w", s.File, err)
	case hex.EncodeToString(r.tail) != s.SHA256:
		return fmt.Errorf("etcd's snapshot %s is not the one that was taken at %s", s.File, s.taken())
	}
	return nil
}

// newerKubelets are the other nodes that the old API server could not serve. An
// API server that does not answer is no reason not to put it back.
func (b wayBack) newerKubelets(ctx context.Context, env Env) []Block {
	pods, err := b.pods(env)
	if err != nil {
		return nil
	}
	i := slices.IndexFunc(pods, func(p staticPod) bool { return p.component == kubeAPIServer })
	if i < 0 || imageVersion(pods[i].image()) == nil {
		return nil
	}
	old := imageVersion(pods[i].image())
	client, _, err := reachAPI(ctx, env, apiLook)
	if err != nil {
		env.Log.Warn("whether other nodes' kubelets are too new is unknown", "reason", err.Error())
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, apiAnswer)
	defer cancel()
	// The kubelet's own credentials may not list nodes.
	if admin, err := env.Admin(ctx); err == nil {
		client = admin
	}
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		env.Log.Warn("whether other nodes' kubelets are too new is unknown", "reason", err.Error())
		return nil
	}
	var blocks []Block
	for _, n := range nodes.Items {
		v, err := version.ParseSemantic(n.Status.NodeInfo.KubeletVersion)
		if n.Name == env.Node.Name || err != nil || !version.MajorMinor(v.Major(), v.Minor()).GreaterThan(version.MajorMinor(old.Major(), old.Minor())) {
			continue
		}
		blocks = append(blocks, Block{
			Reason: fmt.Sprintf("node %s's kubelet is %s, newer than the API server would be (v%s)", n.Name, n.Status.NodeInfo.KubeletVersion, old),
			Hint:   "roll that node back first: upgrader rollback on " + n.Name,
		})
	}
	return blocks
}

// awaitReport waits until the running kubelet has reported a ready node.
func awaitReport(ctx context.Context, env Env) error {
	return within(ctx, env, apiReturns, time.Second, func(ctx context.Context) error {
		unit, err := env.Host.Units.Show(ctx, kubeletUnit)
		if err != nil {
			return err
		}
		started, err := processStart(env, unit.MainPID)
		if err != nil {
			return err
		}
		client, err := env.Kube(ctx)
		if err != nil {
			return err
		}
		asking, cancel := context.WithTimeout(ctx, apiAnswer)
		defer cancel()
		node, err := getNode(asking, client, env.Node.Name)
		if err != nil {
			return err
		}
		ready := readyCondition(node)
		seen, err := lastHeartbeat(asking, env, client, ready)
		switch {
		case err != nil:
			return err
		case ready.Status != corev1.ConditionTrue:
			return fmt.Errorf("node %s is not ready: %s", env.Node.Name, ready.Message)
		case !seen.After(started):
			return fmt.Errorf("node %s has not reported since the kubelet's start", env.Node.Name)
		}
		return nil
	})
}
