package steps

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/node-upgrader/node-upgrader/hostexec"
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

// askPatience is how long a program may take to tell its version or what it
// makes of its configuration: a broken one may hang.
const askPatience = 30 * time.Second

// ask runs a program that only tells something. One that does not end is a
// *hostexec.CommandError as well.
func ask(ctx context.Context, host hostexec.Host, argv ...string) (hostexec.Output, error) {
	return askAbout(ctx, host, nil, argv...)
}

// askAbout is ask with something for the program to read.
func askAbout(ctx context.Context, host hostexec.Host, stdin io.Reader, argv ...string) (hostexec.Output, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, askPatience, errors.New("no answer for "+askPatience.String()))
	defer cancel()
	return host.Commands.Run(ctx, hostexec.Command{Argv: argv, Stdin: stdin, Grace: time.Second})
}
