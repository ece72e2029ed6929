package upstream

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/node-upgrader/node-upgrader/image/strictjson"
)

// SchemaVersion is that of a lock file.
const SchemaVersion = 1

// maxLock bounds a lock file; all architectures' take 8 KiB.
const maxLock = 1 << 20

// Lock is what a lock file says.
type Lock struct {
	SchemaVersion int   `json:"schemaVersion"`
	Artifacts     []Pin `json:"artifacts"` // sorted by component and architecture
}

// Pin is one artifact and what it must be.
type Pin struct {
	Component    string `json:"component"`
	Version      string `json:"version"`
	Architecture string `json:"architecture"`
	URL          string `json:"url"` // the project's own, also where a mirror is used
	SHA256       string `json:"sha256"`
}

// LockError says what is wrong with a lock file.
type LockError struct {
	File   string
	Reason string
	Hint   string
}

func (e *LockError) Error() string { return e.File + ": " + e.Reason }

// Advice is what to do about it.
func (e *LockError) Advice() string { return e.Hint }

const hintUpdate = "run the same command again with --update-lock, and read the difference before you commit it"

var sha256Syntax = regexp.MustCompile(`^[0-9a-f]{64}$`)

// ReadLock reads a lock file. One that is missing is an os.ErrNotExist; what is
// wrong with it is a *LockError.
func ReadLock(name string) (Lock, error) {
	f, err := os.Open(name)
	if err != nil {
		return Lock{}, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxLock+1))
	if err != nil {
		return Lock{}, fmt.Errorf("read the lock file: %w", err)
	}
	l, err := decodeLock(data)
	if err != nil {
		return Lock{}, &LockError{name, err.Error(), "take it from where it is kept, or remove it and make it anew with --update-lock"}
	}
	return l, nil
}

// decodeLock takes nothing that Write would not have written, white space aside.
func decodeLock(data []byte) (Lock, error) {
	var schema struct {
		SchemaVersion int `json:"schemaVersion"`
	}
	if len(data) > maxLock {
		return Lock{}, fmt.Errorf("is larger than %d MiB", maxLock>>20)
	}
	if err := json.Unmarshal(data, &schema); err != nil {
		return Lock{}, fmt.Errorf("is not valid JSON for a lock: %w", err)
	}
	if schema.SchemaVersion != SchemaVersion {
		return Lock{}, fmt.Errorf("has schema version %d, this upgrader knows %d", schema.SchemaVersion, SchemaVersion)
	}
	var l Lock
	if err := strictjson.Unmarshal(data, &l); err != nil {
		return Lock{}, err
	}
	return l, l.validate()
}

func (l Lock) validate() error {
	versions := map[string]string{}
	for i, p := range l.Artifacts {
		a, err := newArtifact(p.Component, p.Version, p.Architecture)
		switch {
		case err != nil:
			return err
		case p.URL != a.URL:
			return fmt.Errorf("has the address %.200q for %s, not %s", p.URL, p, a.URL)
		case !sha256Syntax.MatchString(p.SHA256):
			return fmt.Errorf("has no valid sha256 for %s", p)
		case i > 0 && comparePins(l.Artifacts[i-1], p) >= 0:
			return fmt.Errorf("has %s twice or out of order", p)
		case versions[p.Component] != "" && versions[p.Component] != p.Version:
			return fmt.Errorf("has two versions of %s, %s and %s", p.Component, versions[p.Component], p.Version)
		}
		versions[p.Component] = p.Version
	}
	return nil
}

// Write replaces a lock file in one instant, synced; a link is followed.
func (l Lock) Write(name string) (err error) {
	slices.SortFunc(l.Artifacts, comparePins)
	if err := l.validate(); err != nil {
		return fmt.Errorf("write the lock file: %w", err)
	}
	data, err := strictjson.Marshal(l, "  ")
	if err != nil {
		return fmt.Errorf("write the lock file: %w", err)
	}
	if target, err := filepath.EvalSymlinks(name); err == nil {
		name = target
	}
	f, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+"-")
	if err != nil {
		return fmt.Errorf("write the lock file: %w", err)
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write the lock file: %w", err), os.Remove(f.Name()))
	}
	return nil
}

// String names a pin for people.
func (p Pin) String() string { return p.Component + " " + p.Version + " for " + p.Architecture }

func comparePins(a, b Pin) int {
	return cmp.Or(cmp.Compare(a.Component, b.Component), cmp.Compare(a.Architecture, b.Architecture))
}

// find returns a component's pin.
func (l Lock) find(component, arch string) (Pin, bool) {
	for _, p := range l.Artifacts {
		if p.Component == component && p.Architecture == arch {
			return p, true
		}
	}
	return Pin{}, false
}

// version is a component's, whatever the architecture; "" where it is not pinned.
func (l Lock) version(component string) string {
	for _, p := range l.Artifacts {
		if p.Component == component {
			return p.Version
		}
	}
	return ""
}

// architectures are all that the lock has anything for, sorted.
func (l Lock) architectures() []string {
	var all []string
	for _, p := range l.Artifacts {
		all = append(all, p.Architecture)
	}
	slices.Sort(all)
	return slices.Compact(all)
}
