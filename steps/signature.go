package steps

import (
	"errors"
	"fmt"
	"os"

	"github.com/node-upgrader/node-upgrader/hostexec"
	"github.com/node-upgrader/node-upgrader/image/trust"
)

// PolicyKeys is the host's own demand: where this file is, nothing is installed
// that none of its keys has signed, whatever the command says.
const PolicyKeys = "/etc/node-upgrader/require-signature.pub"

// CheckSignature checks that the bundle was signed by the keys that the user
// demands and by those of the host, and returns who signed it: nobody, where
// neither demands anything. It reads the host's file system and changes nothing.
// What is wrong with the bundle is an *image.BadBundleError, with the keys a
// *trust.KeyError: both are refusals (ExitBlocked).
func CheckSignature(env Env) (by []string, err error) {
	files := env.Host.FS
	var demanded []string
	if key := env.Options.RequireSignature; key != "" {
		demanded = append(demanded, key)
	}
	// Not Exists: a link that leads nowhere is a demand that cannot be met.
	switch _, err := files.Lstat(PolicyKeys); {
	case err == nil:
		demanded = append(demanded, PolicyKeys)
	case !errors.Is(err, os.ErrNotExist):
		return nil, fmt.Errorf("look for the host's keys: %w", err)
	}
	for _, path := range demanded {
		keys, err := hostKeys(files, path)
		if err != nil {
			return nil, err
		}
		one, err := env.Bundle.VerifySignature(keys, env.Clock.Now())
		if err != nil {
			return nil, err
		}
		by = append(by, one)
	}
	return by, nil
}

// hostKeys reads keys of the host. A file that others than root may change, or put
// another in the place of, says nothing of what root demands: it is refused.
func hostKeys(files hostexec.FS, path string) (*trust.Keys, error) {
	info, err := files.Stat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, &trust.KeyError{Name: path, Reason: "is missing on the host", Hint: "put the public key there: a signature by it is required"}
	case err != nil:
		return nil, fmt.Errorf("look at the key %s of the host: %w", path, err)
	case !info.Mode().IsRegular():
		return nil, &trust.KeyError{Name: path, Reason: "is not a regular file on the host", Hint: "put the public key there as a file"}
	}
	if err := onlyRoots(files, path, ownerOf); err != nil {
		return nil, err
	}
	f, err := files.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open the key %s of the host: %w", path, err)
	}
	defer f.Close()
	return trust.ReadKeys(path, f)
}
