package steps

import (
	"context"
	"fmt"
	"path"
)

const deviceCheckpoint = "kubelet_internal_checkpoint"

// kubeletStateFiles are the names of what the kubelet remembers by.
func kubeletStateFiles() []string {
	return []string{
		"cpu_manager_state", "memory_manager_state", "dra_manager_state",
		"allocated_pods_state", "actuated_pods_state", deviceCheckpoint,
	}
}

// keepKubeletState keeps what the kubelet remembers across its restarts and
// what it is configured with. It returns the files of the first kind: a
// kubelet of another minor version writes them in another format, and one that
// goes back refuses to start on what it cannot read.
func keepKubeletState(ctx context.Context, env Env, f kubeletFound) ([]string, error) {
	root := "/var/lib/kubelet"
	if dir, ok := flagValue(f.args, "root-dir"); ok && dir != "" {
		root = dir
	}
	var state []string
	for _, name := range kubeletStateFiles() {
		if name == deviceCheckpoint {
			name = path.Join("device-plugins", name)
		}
		state = append(state, path.Join(root, name))
	}
	config, err := kubeletConfigFiles(env.Host.FS, f.args)
	if err != nil {
		return nil, err
	}
	for _, e := range f.unit.EnvFiles {
		config = append(config, e.Path)
	}
	for _, file := range config {
		if err := backup(ctx, env, file); err != nil {
			return nil, fmt.Errorf("keep %s: %w", file, err)
		}
	}
	keep := backup
	if f.isStale(f.kubelet) {
		// The old kubelet still lies there, and may have written since an
		// earlier attempt of this run kept its state.
		keep = backupAgain
	}
	for _, file := range state {
		if err := keep(ctx, env, file); err != nil {
			return nil, fmt.Errorf("keep %s: %w", file, err)
		}
	}
	return state, nil
}
