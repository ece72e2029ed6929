package steps

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

// apiReturns is how long an API server that is away is waited for: on the only
// control plane it may be on its way back.
const apiReturns = 5 * time.Minute

// kubeadmLog is kubeadm's whole output, in the run's record.
const kubeadmLog = "kubeadm.log"

func runKubeadm(ctx context.Context, env Env) error {
	if err := env.Options.Kubeadm.Validate(); err != nil {
		return err
	}
	if blocks, err := restoreUnderWay(env.Host.FS); err != nil || len(blocks) > 0 {
		return errors.Join(err, blockedBy(blocks))
	}
	lost, err := lostFiles(ctx, env)
	if err != nil {
		return err
	}
	if err := mendInterrupted(ctx, env, lost); err != nil {
		return err
	}
	k, err := awaitKubeadmState(ctx, env, len(lost) == 0)
	if err != nil {
		return err
	}
	if k.upgrade {
		err = k.run(ctx, env)
	} else if err = k.keepFiles(ctx, env); err == nil {
		err = install(ctx, env, k.stale)
	}
	if err != nil || env.Node.Role == Worker {
		return err
	}
	if k.pods, err = staticPods(env.Host.FS); err != nil {
		return err
	}
	if err := waitStaticPods(ctx, env, k.pods); err != nil {
		return err
	}
	return pruneCopies(env)
}

// awaitKubeadmState looks when the API server answers: kubeadm needs it, and
// so does the decision how to run it. untouched says that this run has changed
// nothing yet: only then what blocks is a *BlockedError.
func awaitKubeadmState(ctx context.Context, env Env, untouched bool) (kubeadmState, error) {
	started, err := loadIntent(env.Host.FS)
	if err != nil {
		return kubeadmState{}, err
	}
	untouched = untouched && started == nil
	if _, _, err := reachAPI(ctx, env, apiReturns); err != nil {
		return kubeadmState{}, refuse(ctx, untouched, &HintError{
			Err: err, Hint: "is it running? crictl ps -a --name kube-apiserver; journalctl -u kubelet",
		})
	}
	k, err := lookKubeadm(ctx, env)
	if err != nil {
		return k, err
	}
	k.untouched = untouched
	if !k.upgrade && len(k.stale) == 0 {
		return k, nil
	}
	blocks, err := againstCluster(ctx, env)
	if err != nil {
		return k, refuse(ctx, untouched, err)
	}
	more, err := k.blocks(ctx, env)
	if blocks = append(blocks, more...); err != nil || len(blocks) == 0 {
		return k, err
	}
	return k, refuse(ctx, untouched, &BlockedError{Blocks: blocks})
}

// refuse makes err a *BlockedError where nothing was changed yet, and where it
// is not our own time that is up; anywhere else it is none.
func refuse(ctx context.Context, untouched bool, err error) error {
	var blocked *BlockedError
	switch is := errors.As(err, &blocked); {
	case untouched && is:
		return err
	case is:
		return &HintError{Err: errors.New(err.Error()), Hint: strings.Join(Hints(err), "; ")}
	case !untouched || ctx.Err() != nil:
		return err
	}
	return &BlockedError{Blocks: []Block{{Reason: err.Error(), Hint: strings.Join(Hints(err), "; ")}}}
}

// run keeps what is about to change, installs kubeadm and upgrades by it.
func (k *kubeadmState) run(ctx context.Context, env Env) error {
	target := env.Bundle.Manifest.KubernetesVersion
	mode, err := k.mode(ctx, env)
	if err != nil {
		return err
	}
	if err := haveImages(ctx, env); err != nil {
		return refuse(ctx, k.untouched, err)
	}
	s, err := k.keep(ctx, env)
	if err != nil {
		return err
	}
	if err := install(ctx, env, k.stale); err != nil {
		return err
	}
	if !k.onItsWay {
		if k.started, err = newIntent(ctx, env, mode, s); err != nil {
			return err
		}
	} else {
		k.started.Snapshot, k.started.Resumed = s, true
	}
	if err := k.started.save(ctx, env.Host.FS); err != nil {
		return err
	}
	argv := env.Options.Kubeadm.command(k.binary.Dest, mode, target, ignorable(ctx, env, mode)...)
	if err := kubeadm(ctx, env, argv, s); err != nil {
		// The node is to work as it is left, not only after the next call.
		if unmended := mendLost(context.WithoutCancel(ctx), env); unmended != nil {
			env.Log.Error("kubeadm has left files missing", "reason", unmended.Error(), "do", strings.Join(Hints(unmended), "; "))
		}
		return err
	}
	// kubeadm has finished, also when our time is up meanwhile.
	return finish(context.WithoutCancel(ctx), env, k.started, k.binary.SHA256)
}

// haveImages brings what is still missing of the images: containerd may have been
// down when the bundle was staged, or somebody has removed one since. What would
// have kept copy from it is a *BlockedError here too, before anything is brought.
// What cannot be told is left to kubeadm's own check.
func haveImages(ctx context.Context, env Env) error {
	images, err := lookImages(ctx, env)
	if err != nil {
		if ctx.Err() == nil {
			env.Log.Warn("cannot tell whether the images are there", "reason", err.Error())
		}
		return nil
	}
	room, err := images.room(env)
	if err != nil {
		return err
	}
	if err := blockedBy(slices.Concat(images.blocks, room)); err != nil || images.unknown != "" || len(images.due()) == 0 {
		return err
	}
	if err := images.pullAll(ctx, env); err != nil {
		return err
	}
	return images.importAll(ctx, env, env.Bundle)
}

// keep takes etcd's snapshot and copies every file that kubeadm may rewrite.
func (k *kubeadmState) keep(ctx context.Context, env Env) (s *snapshot, err error) {
	if k.onItsWay {
		s = k.started.Snapshot
	}
	if k.member != nil {
		if s, err = takeSnapshot(ctx, env, k.member, s); err != nil {
			return nil, refuse(ctx, k.untouched, err)
		}
	} else if env.Node.Role == ControlPlane {
		env.Log.Info("etcd is no static pod of this node: no snapshot is taken")
	}
	return s, k.keepFiles(ctx, env)
}

// kubeadm runs kubeadm to its end, whatever happens to ctx: killed between two
// renames it would take a static pod away. s is etcd's snapshot, nil without.
func kubeadm(ctx context.Context, env Env, argv []string, s *snapshot) error {
	log := env.Record.Path(kubeadmLog)
	if err := env.Record.Init(); err != nil {
		return err
	}
	if err := env.Host.FS.AppendLine(log, []byte("$ "+strings.Join(argv, " "))); err != nil {
		return err
	}
	env.Log.Info("running kubeadm, which may take some minutes", "command", strings.Join(argv, " "), "log", log)
	_, err := env.Host.Commands.Run(ctx, hostexec.Command{
		Argv:            argv,
		Uninterruptible: true,
		Changes:         true,
		Line: func(line string) {
			// The log is a convenience: a full disk must not make an upgrade fail.
			_ = env.Host.FS.AppendLine(log, []byte(line))
			if strings.HasPrefix(line, "[") {
				env.Log.Info(line, "from", "kubeadm")
			} else if line != "" {
				env.Log.Debug(line, "from", "kubeadm")
			}
		},
	})
	if err == nil {
		return nil
	}
	hint := "read " + log + "; when its cause is mended, run the upgrader again: it resumes with the same command"
	if s != nil {
		hint += "; etcd as it was at " + s.Taken.Format(time.RFC3339) + " is in " + s.File
	}
	err = &HintError{Err: err, Hint: hint}
	var command *hostexec.CommandError
	if errors.As(err, &command) && command.Code < 0 {
		// Killed: it has rolled nothing back, and what was left is for the next
		// call to mend and to bring to its end.
		return &leaveError{err}
	}
	return err
}
