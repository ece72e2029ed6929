package steps

import (
	"context"
	"fmt"
	"strings"
)

// blocks are all the reasons not to run kubeadm. Once it has begun to change
// the control plane, what it left half-done of etcd is no reason.
func (k *kubeadmState) blocks(ctx context.Context, env Env) ([]Block, error) {
	if !k.upgrade {
		return roomFor(env, k.stale)
	}
	blocks, err := env.Options.Kubeadm.blocks(env.Host.FS)
	if err != nil {
		return nil, err
	}
	blocks = append(blocks, lostBlocks(k.lost)...)
	writes, err := kubeadmTouches(env)
	if err != nil {
		return nil, err
	}
	room, err := roomFor(env, k.stale, writes...)
	if err != nil {
		return nil, err
	}
	blocks = append(blocks, room...)
	if k.started == nil {
		blocks = append(blocks, leftoverBlocks(k.extra)...)
	}
	if env.Node.Role != ControlPlane {
		return blocks, nil
	}
	if there, err := env.Host.FS.Exists(adminConf); err != nil {
		return nil, err
	} else if !there {
		blocks = append(blocks, Block{
			Reason: "there is no " + adminConf + ", by which kubeadm speaks to the cluster",
			Hint:   "kubeadm init phase kubeconfig admin",
		})
	}
	if k.member == nil || k.onItsWay {
		return blocks, nil
	}
	ill, err := k.member.blocks(ctx, env)
	return append(blocks, ill...), err
}

// changes are what Run would do, in order.
func (k *kubeadmState) changes(ctx context.Context, env Env) ([]Change, error) {
	var changes []Change
	for _, l := range k.lost {
		changes = append(changes, Change{Verb: "restore", Object: l.path})
	}
	if k.started != nil {
		for _, f := range k.extra {
			changes = append(changes, Change{Verb: "move away", Object: f})
		}
	}
	if k.upgrade && k.member != nil && !k.onItsWay {
		changes = append(changes, Change{Verb: "add", Object: env.Record.Path(snapshotFile)})
	}
	changes = append(changes, replaceChanges(k.stale)...)
	if !k.upgrade {
		return changes, nil
	}
	command := k.binary.Dest + " upgrade"
	if mode, err := k.mode(ctx, env); err == nil {
		command = strings.Join(env.Options.Kubeadm.command(k.binary.Dest, mode, env.Bundle.Manifest.KubernetesVersion), " ")
	} else if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	} else {
		k.facts = append(k.facts, Fact{Name: "API server", Have: fmt.Sprintf("unknown: %v", err)})
	}
	changes = append(changes, Change{Verb: "run", Object: command})
	for _, p := range k.pods {
		changes = append(changes, Change{Verb: "replace", Object: manifestPath(p.component)})
	}
	return append(changes, Change{Verb: "replace", Object: kubeletConfig}), nil
}
