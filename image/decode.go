package image

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"github.com/node-upgrader/node-upgrader/image/strictjson"
)

// maxManifest bounds bundle.json. Fifty files need 12 KiB.
const maxManifest = 8 << 20

// readManifest reads dir's bundle.json without following a link, blocking on a
// pipe or reading more than maxManifest.
func readManifest(dir string) ([]byte, error) {
	return readSmall(dir, ManifestName, maxManifest)
}

// readSmall reads a file of a bundle that the manifest says nothing of.
func readSmall(dir, name string, most int64) ([]byte, error) {
	f, err := openRegular(filepath.Join(dir, name))
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, &BadBundleError{name, "is missing in " + dir, hintBuild}
	case errors.Is(err, errNotRegular):
		return nil, badFile(name, "is not a regular file")
	case err != nil:
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	if int64(len(data)) > most {
		return nil, badFile(name, fmt.Sprintf("is larger than %d KiB", most>>10))
	}
	return data, nil
}

var errNotRegular = errors.New("not a regular file")

// openRegular opens a regular file for reading and nothing else: a symbolic
// link or anything that is not a file is errNotRegular.
func openRegular(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, syscall.ELOOP) || errors.Is(err, syscall.ENXIO) {
		return nil, fmt.Errorf("open %s: %w", name, errNotRegular)
	}
	if err != nil {
		return nil, err
	}
	fi, err := f.Stat()
	if err == nil && !fi.Mode().IsRegular() {
		err = fmt.Errorf("open %s: %w", name, errNotRegular)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// decode reads a manifest and checks all that can be known from it alone.
// The architecture may be any known one.
func decode(data []byte) (Manifest, error) {
	bad := func(reason, hint string) (Manifest, error) {
		return Manifest{}, &BadBundleError{ManifestName, reason, hint}
	}
	// The schema first: a newer one has fields that this one does not know.
	var schema struct {
		SchemaVersion int `json:"schemaVersion"`
	}
	if err := json.Unmarshal(data, &schema); err != nil {
		return bad("is not valid JSON for a bundle: "+err.Error(), hintFetchAgain)
	}
	if schema.SchemaVersion != SchemaVersion && schema.SchemaVersion != SchemaVersionImages {
		return bad(fmt.Sprintf("has schema version %d, this upgrader knows %d and %d", schema.SchemaVersion, SchemaVersion, SchemaVersionImages),
			"use the upgrader that the bundle was built with")
	}
	var m Manifest
	if err := strictjson.Unmarshal(data, &m); errors.Is(err, strictjson.ErrSpelling) {
		return bad(err.Error(), hintBuild)
	} else if err != nil {
		return bad(err.Error(), hintFetchAgain)
	}
	return m, validate(m)
}

// marshal writes what decode reads.
func marshal(m Manifest, indent string) ([]byte, error) {
	data, err := strictjson.Marshal(m, indent)
	if err != nil {
		return nil, fmt.Errorf("encode manifest: %w", err)
	}
	return data, nil
}
