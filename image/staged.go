package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

const (
	stagedBundle   = "bundle"
	stagedUpgrader = "upgrader"
)

// Staged is a bundle on the host, whose every byte is known to be right, and
// the upgrader beside it.
type Staged struct {
	Bundle   *Bundle // opened in the store
	Upgrader string  // path of the staged executable
	Copied   bool    // by this call of Stage; false: was there and sound
	// Trusted is false when every byte had to be read, since the stamp did not
	// fit. Stage makes it true again.
	Trusted bool
}

// FindStaged returns the stage of the bundle with a digest, if there is one and
// it is sound; else an error that is ErrNotStaged, and also a *BadBundleError
// when something is there but not sound. It writes nothing.
//
// bootID is /proc/sys/kernel/random/boot_id. In the boot in which the stage was
// checked the files are looked at; in another one, or with "", all are read.
func FindStaged(ctx context.Context, store, digest, bootID string) (Staged, error) {
	stage, err := stageDir(store, digest)
	if err != nil {
		return Staged{}, err
	}
	s, _, err := findStaged(ctx, stage, digest, bootID)
	if err != nil {
		return Staged{}, err
	}
	fi, err := os.Lstat(s.Upgrader)
	if err != nil || !fi.Mode().IsRegular() || fi.Mode()&0o100 == 0 {
		return Staged{}, fmt.Errorf("find staged bundle: no executable upgrader beside it: %w", ErrNotStaged)
	}
	return s, nil
}

// StagedNeeds returns the bytes that Stage needs for a bundle's files in the
// store, in blocks of 4 KiB. The upgrader's own size comes on top.
func StagedNeeds(b *Bundle) int64 {
	const block = 4 << 10
	needs := int64(16 * block) // bundle.json, stamp, directories
	for _, f := range b.Manifest.Files {
		needs += (f.Size + block - 1) / block * block
	}
	return needs
}

func stageDir(store, digest string) (string, error) {
	hex, ok := strings.CutPrefix(digest, "sha256:")
	if !ok || !sha256Syntax.MatchString(hex) {
		return "", fmt.Errorf("bundle digest %q is not a sha256", printable(digest))
	}
	return filepath.Join(store, hex), nil
}

// findStaged checks a stage's bundle, not its upgrader. It also returns what it
// saw of the files and what the stamp says, for a new stamp.
func findStaged(ctx context.Context, stage, digest, bootID string) (Staged, stamp, error) {
	unsound := func(err error) (Staged, stamp, error) {
		if ctx.Err() != nil {
			return Staged{}, stamp{}, ctx.Err()
		}
		var bad *BadBundleError
		if !errors.As(err, &bad) {
			return Staged{}, stamp{}, fmt.Errorf("find staged bundle: %w", err)
		}
		return Staged{}, stamp{}, fmt.Errorf("find staged bundle: %w: %w", ErrNotStaged, bad)
	}
	if _, err := os.Lstat(stage); errors.Is(err, fs.ErrNotExist) {
		return Staged{}, stamp{}, fmt.Errorf("find %s: %w", digest, ErrNotStaged)
	}
	b, err := Open(filepath.Join(stage, stagedBundle))
	if err != nil {
		return unsound(err)
	}
	if b.Digest != digest {
		return unsound(badFile(ManifestName, "was altered: its digest is not the stage's"))
	}
	seen, err := b.look()
	if err != nil {
		return unsound(err)
	}
	was := readStamp(stage)
	trusted := was.fits(seen, bootID)
	if !trusted {
		if err := b.verifyFiles(ctx, nil); err != nil {
			return unsound(err)
		}
	}
	now := stamp{SchemaVersion, bootID, allLooks(seen), was.Upgrader}
	if was.BootID != bootID {
		now.Upgrader = upgraderLooks{}
	}
	return Staged{Bundle: b, Upgrader: filepath.Join(stage, stagedUpgrader), Trusted: trusted}, now, nil
}
