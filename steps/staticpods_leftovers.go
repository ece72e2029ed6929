package steps

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

// leftovers are files in the directory of the static pods' manifests that are
// none of kubeadm's, and that the kubelet takes for one: it reads every file
// there whose name does not begin with a dot, whatever it ends in, and two with
// the same pod keep each other from running.
func leftovers(host hostexec.FS) ([]string, error) {
	entries, err := host.ReadDir(manifestsDir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var found []string
	for _, e := range entries {
		name := e.Name()
		component := strings.TrimSuffix(name, ".yaml")
		if e.IsDir() || strings.HasPrefix(name, ".") || name != component && slices.Contains(controlPlane(), component) {
			continue
		}
		file := path.Join(manifestsDir, name)
		if slices.ContainsFunc(controlPlane(), func(c string) bool { return strings.HasPrefix(name, c+".yaml") }) {
			found = append(found, file)
			continue
		}
		p, err := readStaticPod(host, name, file)
		if errors.Is(err, os.ErrPermission) || errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		if err == nil && slices.Contains(controlPlane(), p.pod.Name) { // what is no pod is nothing to the kubelet
			found = append(found, file)
		}
	}
	return found, nil
}

// leftoverBlocks: before kubeadm was started they are somebody's, who has to
// know that they are in the way.
func leftoverBlocks(files []string) []Block {
	var blocks []Block
	for _, f := range files {
		blocks = append(blocks, Block{
			Reason: "the kubelet takes " + f + " for the manifest of a static pod that has one already",
			Hint:   "mkdir -p /root/manifests && mv " + f + " /root/manifests/",
		})
	}
	return blocks
}

// moveLeftovers moves what an interrupted kubeadm, or what followed it, has left
// into the run's record. It is idempotent.
func moveLeftovers(ctx context.Context, env Env) error {
	files, err := leftovers(env.Host.FS)
	if err != nil {
		return err
	}
	for _, f := range files {
		to := env.Record.Path("leftovers", path.Base(f))
		env.Log.Warn("moving away what the kubelet would take for a static pod", "file", f, "to", to)
		if err := env.Host.FS.MkdirAll(path.Dir(to), 0o700); err != nil {
			return err
		}
		if err := env.Host.FS.Clone(ctx, f, to); err != nil {
			return fmt.Errorf("move %s away: %w", f, err)
		}
		if err := env.Host.FS.Remove(f); err != nil {
			return fmt.Errorf("move %s away: %w", f, err)
		}
	}
	return nil
}
