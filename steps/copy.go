package steps

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/node-upgrader/node-upgrader/image"
)

// Staging is where the copy step takes things from.
type Staging struct {
	// Upgrader is the path of the running program, as this process sees it.
	Upgrader string
	// BootID is the kernel's; what was staged under another one is hashed
	// again, since a power cut may have taken what was not yet on the disk.
	BootID string
}

// headroom is what has to stay free on the disk beside what is staged: backups
// of the files replaced and the journal are smaller than the bundle itself.
const headroom = 64 << 20

// upgraderSize is more than the program itself, which is staged too.
const upgraderSize = 128 << 20

// inodes is more than a bundle's files and their backups will ever need.
const inodes = 512

// copyStep puts the bundle and the upgrader itself on the host, verified, so
// that every later step, and a rollback, work without the image; and the container
// images that the new version will need into containerd's store. What the bundle
// does not bring is pulled before anything is staged: where that cannot be done,
// nothing has been changed.
func copyStep() Step {
	return Step{
		Name: stepCopy, Short: "verify the bundle, stage it on the host with the upgrader itself, and bring the images that will be needed",
		Timeout: 30 * time.Minute, Check: checkCopy, Run: runCopy,
	}
}

func checkCopy(ctx context.Context, env Env) (State, error) {
	state, err := checkStaged(ctx, env)
	if err != nil {
		return state, err
	}
	staging := demand{dir: StateDir, what: "staging the bundle and keeping what it replaces", hint: "old bundles are below " + Store}
	if slices.ContainsFunc(state.Changes, func(c Change) bool { return c.Verb == "add" }) {
		staging.bytes = stagingNeeds(env)
	}
	images, err := lookImages(ctx, env)
	if err != nil {
		return state, fmt.Errorf("look at the images: %w", err)
	}
	return state, images.state(env, &state, staging)
}

// checkStaged is what there is to do but for images, and for the room that it takes.
func checkStaged(ctx context.Context, env Env) (State, error) {
	store, err := env.Host.FS.Resolve(Store)
	if err != nil {
		return State{}, err
	}
	want := env.Bundle.Digest
	staged, err := image.FindStaged(ctx, store, want, env.Staging.BootID)
	switch {
	case err == nil && staged.Trusted:
		same, err := staged.UpgraderIs(ctx, env.Staging.Upgrader)
		if err != nil {
			return State{}, err
		}
		if !same {
			return State{Phase: Needed, Facts: []Fact{{"staged upgrader", "another", "this one"}}}, nil
		}
		if env.Bundle.Signed() && !env.Bundle.SameSignature(staged.Bundle) {
			return State{Phase: Needed, Facts: []Fact{{"staged signature", "another or none", "this bundle's"}}}, nil
		}
		return State{Phase: Done, Facts: []Fact{{"bundle", want, want}}}, nil
	case err == nil:
		// Staged before the last boot, and sound: only its stamp is old.
		return State{Phase: Needed, Facts: []Fact{{"bundle", "staged before the last boot", want}}}, nil
	}
	// It is hashed on its way to the stage too; a wrong one is refused before
	// anything was written.
	for _, f := range env.Bundle.Manifest.Files {
		if err := env.Bundle.VerifyFile(ctx, f); err != nil {
			return State{}, err
		}
	}
	state := State{
		Phase:   Needed,
		Facts:   []Fact{{"bundle", "not staged", want}},
		Changes: []Change{{"add", Store + "/" + strings.TrimPrefix(want, "sha256:")}},
	}
	if !errors.Is(err, image.ErrNotStaged) {
		state.Facts[0].Have = err.Error()
	}
	if state.Blocks, err = stateWritable(env); err != nil {
		return State{}, err
	}
	if len(state.Blocks) > 0 {
		state.Phase = Blocked
	}
	free, err := env.Host.FS.Free(Store)
	if err != nil {
		return State{}, err
	}
	if free.Inodes < inodes {
		state.Phase = Blocked
		state.Blocks = append(state.Blocks, Block{
			Reason: fmt.Sprintf("disk: %s has %d inodes free, %d are needed", StateDir, free.Inodes, inodes),
			Hint:   "remove files on the file system of " + StateDir,
		})
	}
	return state, nil
}

// stagingNeeds is how much the bundle takes in the upgrader's directory, and what
// is kept there of what it replaces.
func stagingNeeds(env Env) uint64 {
	need := uint64(image.StagedNeeds(env.Bundle)) + headroom + upgraderSize //nolint:gosec // sizes are positive
	for _, f := range env.Bundle.Manifest.Files {
		if f.Component != image.Images { // the backup of what it replaces is about as large
			need += uint64(f.Size) //nolint:gosec // as above
		}
	}
	return need
}

func runCopy(ctx context.Context, env Env) error {
	by, err := CheckSignature(env)
	if err != nil {
		return err
	}
	images, err := lookImages(ctx, env)
	if err != nil {
		return fmt.Errorf("look at the images: %w", err)
	}
	if err := blockedBy(images.blocks); err != nil {
		return err
	}
	if err := images.pullAll(ctx, env); err != nil {
		return err
	}
	if err := env.Host.FS.MkdirAll(Store, 0o700); err != nil {
		return err
	}
	store, err := env.Host.FS.Resolve(Store)
	if err != nil {
		return err
	}
	staged, err := image.Stage(ctx, env.Bundle, image.StageOptions{
		Store: store, Upgrader: env.Staging.Upgrader, BootID: env.Staging.BootID,
		Progress: func(done, total int64) {
			env.Log.Debug("progress", "done", done, "total", total)
		},
		Effect: func(op, path string) error {
			return env.change(op, env.Host.FS.HostPath(path), func() error { return nil })
		},
	})
	if err != nil {
		return fmt.Errorf("stage the bundle: %w", err)
	}
	log := env.Log
	if len(by) > 0 {
		log = log.With("signedBy", strings.Join(by, ", "))
	}
	log.Info("staged and verified", "dir", env.Host.FS.HostPath(staged.Bundle.Dir), "mib", image.StagedNeeds(env.Bundle)>>20)
	if len(images.needs) == 0 {
		return nil
	}
	return images.importAll(ctx, env, staged.Bundle)
}
