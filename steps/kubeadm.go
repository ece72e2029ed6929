package steps

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/util/version"

	"github.com/node-upgrader/node-upgrader/image"
)

// kubeadmStep installs kubeadm and upgrades by it what it manages on this
// node: the control plane's static pods and, through the first control plane,
// the cluster's configuration and addons; on every node the kubelet's
// configuration. It never kills kubeadm, and runs it again when it was
// interrupted.
//
// On a control plane it is done when everything runs at the target, whoever
// made it so. A worker shows nothing of it, so that a record is kept there.
func kubeadmStep() Step {
	return Step{
		Name:    stepKubeadm,
		Short:   "install kubeadm and upgrade by it what it manages",
		Timeout: 45 * time.Minute,
		Check:   checkKubeadm,
		Run:     runKubeadm,
		Undo:    undoKubeadm, UndoBlocks: kubeadmUndoBlocks,
	}
}

// kubeadmState is what was found on the node.
type kubeadmState struct {
	binary  placed
	stale   []placed // kubeadm, where it is not the bundle's
	lost    []lost
	pods    []staticPod
	started *intent  // kubeadm was started, and has not finished
	extra   []string // leftovers
	member  *etcdMember

	onItsWay  bool // it has begun to change the control plane
	upgrade   bool // `kubeadm upgrade` has to run
	settled   bool // what shall run does, and is healthy
	untouched bool // Run has changed nothing yet
	facts     []Fact
}

func checkKubeadm(ctx context.Context, env Env) (State, error) {
	if blocks, err := restoreUnderWay(env.Host.FS); err != nil || len(blocks) > 0 {
		return State{Phase: Blocked, Blocks: blocks}, err
	}
	k, err := lookKubeadm(ctx, env)
	s := State{Facts: k.facts}
	if err != nil {
		return s, err
	}
	if !k.upgrade && k.settled && len(k.stale) == 0 {
		s.Phase = Done
		return s, nil
	}
	s.Phase = Needed
	if s.Changes, err = k.changes(ctx, env); err != nil {
		return s, err
	}
	if s.Blocks, err = k.blocks(ctx, env); err != nil {
		return s, err
	}
	if len(s.Blocks) > 0 {
		s.Phase = Blocked
	}
	return s, nil
}

// lookKubeadm reads only. It asks the API server only when nothing on the disk
// tells that there is something to do.
func lookKubeadm(ctx context.Context, env Env) (kubeadmState, error) {
	var k kubeadmState
	if err := k.lookAtDisk(ctx, env); err != nil {
		return k, err
	}
	done, err := loadUpgraded(env)
	if err != nil {
		return k, err
	}
	switch {
	case len(k.lost) > 0:
		for _, l := range k.lost {
			k.facts = append(k.facts, Fact{Name: l.path, Have: "missing or damaged", Want: "there"})
		}
		k.upgrade = true
	case env.Node.Role == Worker:
		fits := false
		if done != nil && k.started == nil {
			if fits, err = done.fits(ctx, env); err != nil {
				return k, err
			}
		}
		k.upgrade, k.settled = !fits, true
		k.facts = append(k.facts, finishedFact("kubeadm upgrade node", fits))
	case k.started != nil:
		k.upgrade = true
		k.facts = append(k.facts, finishedFact("kubeadm upgrade "+k.started.Mode+" to "+k.started.Version, false))
	default:
		return k, k.lookAtControlPlane(ctx, env, done)
	}
	return k, nil
}

func finishedFact(what string, finished bool) Fact {
	f := Fact{Name: what, Have: "finished", Want: "finished"}
	if !finished {
		f.Have = "not finished"
	}
	return f
}

func (k *kubeadmState) lookAtDisk(ctx context.Context, env Env) (err error) {
	if k.binary, err = kubeadmBinary(env); err != nil {
		return err
	}
	if k.stale, err = outdated(ctx, env, []placed{k.binary}); err != nil {
		return err
	}
	f := Fact{Name: k.binary.Dest, Have: "the bundle's", Want: "the bundle's"}
	if len(k.stale) > 0 {
		f.Have = "another"
	}
	k.facts = append(k.facts, f)
	if k.started, err = loadIntent(env.Host.FS); err != nil {
		return err
	}
	if k.extra, err = leftovers(env.Host.FS); err != nil {
		return err
	}
	if k.lost, err = lostFiles(ctx, env); err != nil || len(k.lost) > 0 || env.Node.Role == Worker {
		return err
	}
	if k.onItsWay, err = k.started.onItsWay(ctx, env); err != nil {
		return err
	}
	if k.pods, err = staticPods(env.Host.FS); err != nil {
		return err
	}
	k.member, err = localMember(env.Host.FS)
	return err
}

// kubeadmBinary is the bundle's kubeadm and where it goes: in place of the one
// that the host's PATH finds.
func kubeadmBinary(env Env) (placed, error) {
	f, ok := env.Bundle.File(image.Kubeadm, "kubeadm")
	if !ok {
		return placed{}, &image.BadBundleError{File: "kubeadm", Reason: "is not in the bundle"}
	}
	dest, err := onPath(env.Host.FS, "kubeadm")
	if dest == "" {
		dest = f.Place
	}
	return placed{File: f, Dest: dest}, err
}

// lookAtControlPlane compares, in this order, the manifests, what runs, its
// health and the cluster's configuration with the target, and stops where
// `kubeadm upgrade` is found to be needed.
func (k *kubeadmState) lookAtControlPlane(ctx context.Context, env Env, done *upgraded) error {
	target := env.Bundle.Manifest.KubernetesVersion
	for _, p := range k.pods {
		if p.component == etcdName { // its version is kubeadm's choice
			continue
		}
		f := Fact{Name: p.component, Have: p.image(), Want: target}
		if p.atVersion(target) || done != nil && done.Images[p.component] == p.image() {
			f.Want = f.Have
		} else {
			k.upgrade = true
		}
		k.facts = append(k.facts, f)
	}
	if k.upgrade {
		return nil
	}
	runs, err := running(ctx, env, k.pods)
	if err != nil {
		return err
	}
	health, err := healthy(ctx, env, k.pods)
	if err != nil {
		return err
	}
	k.settled = true
	for _, f := range append(runs, health...) {
		k.facts = append(k.facts, f)
		k.settled = k.settled && f.Have == f.Want
	}
	client, _, err := reachAPI(ctx, env, apiLook)
	if err != nil {
		return err
	}
	have, err := clusterVersion(ctx, client)
	if err != nil {
		return err
	}
	k.facts = append(k.facts, Fact{Name: "cluster", Have: have, Want: target})
	k.upgrade = older(have, target)
	return nil
}

// atVersion tells whether the pod's image is tagged with the version.
func (p staticPod) atVersion(target string) bool {
	want, err := version.ParseSemantic(target)
	have := imageVersion(p.image())
	return err == nil && have != nil && have.EqualTo(want)
}

func older(have, than string) bool {
	h, err := version.ParseSemantic(have)
	t, err2 := version.ParseSemantic(than)
	return err == nil && err2 == nil && h.LessThan(t)
}

// mode is how kubeadm is to be run: as it was when it was interrupted, else by
// the role and the cluster's version.
func (k *kubeadmState) mode(ctx context.Context, env Env) (string, error) {
	switch {
	case env.Node.Role == Worker:
		return modeNode, nil
	case k.started.resumes(env):
		return k.started.Mode, nil
	}
	client, _, err := reachAPI(ctx, env, apiLook)
	if err != nil {
		return "", err
	}
	have, err := clusterVersion(ctx, client)
	if err != nil {
		return "", err
	}
	if older(have, env.Bundle.Manifest.KubernetesVersion) {
		return modeApply, nil
	}
	return modeNode, nil
}
