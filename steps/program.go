package steps

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/node-upgrader/node-upgrader/image"
)

// notTried is what is found of a program in a container where it cannot run:
// the step's own container will try it.
const notTried = "not tried here"

// program is the path of one of the bundle's own programs, to be run from the
// bundle before anything of it is installed. Each byte of it was compared with
// the manifest: what the manifest does not name is never run. A difference is
// a *image.BadBundleError.
func program(ctx context.Context, env Env, component, name string) (string, error) {
	f, ok := env.Bundle.File(component, name)
	if !ok {
		return "", fmt.Errorf("run %s of the bundle: %w", name, &image.BadBundleError{
			File: image.ManifestName, Reason: "names no " + name + " of " + component,
		})
	}
	if err := env.Bundle.VerifyFile(ctx, f); err != nil {
		return "", fmt.Errorf("run %s of the bundle: %w", name, err)
	}
	return filepath.Join(env.Bundle.Dir, filepath.FromSlash(f.Path)), nil
}
