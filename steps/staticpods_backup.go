package steps

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
)

// weighBackups finds out which backups of lost manifests may be old ones:
// kubeadm keeps every backup for ever, and last year's is not what was lost.
// One that counts was made since kubeadm was started, or has the image that
// kubeadm finished with last, or the version of another static pod or of
// ClusterConfiguration. The kubelet's configuration is not weighed: the kubeadm
// that runs next writes it anew before any kubelet reads it.
func weighBackups(ctx context.Context, env Env, all []lost) error {
	if !slices.ContainsFunc(all, lost.isManifest) {
		return nil
	}
	started, err := loadIntent(env.Host.FS)
	if err != nil {
		return err
	}
	last, err := lastUpgraded(env)
	if err != nil {
		return err
	}
	var fresh []string
	if started != nil {
		if fresh, err = started.made(env.Host.FS, manifestBackupPrefix); err != nil {
			return err
		}
	}
	live := liveVersions(env)
	for i, l := range all {
		if l.backup == "" || !l.isManifest() || slices.Contains(fresh, path.Dir(l.backup)) {
			continue
		}
		component := strings.TrimSuffix(path.Base(l.path), ".yaml")
		p, err := readStaticPod(env.Host.FS, component, l.backup)
		if err != nil {
			all[i].doubt = err.Error()
			continue
		}
		if last != nil && started == nil && last.Images[component] == p.image() {
			continue
		}
		if component == etcdName { // its version is told by no other
			all[i].doubt = "it was made before the upgrader started kubeadm, with " + p.image()
			continue
		}
		if slices.ContainsFunc(live, p.atVersion) {
			continue
		}
		cluster, err := askClusterVersion(ctx, env)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			all[i].doubt = fmt.Sprintf("its image is %s, and the cluster's version is unknown: %v", p.image(), err)
		case !p.atVersion(cluster):
			all[i].doubt = fmt.Sprintf("its image is %s, and the cluster is at %s", p.image(), cluster)
		}
	}
	return nil
}

func (l lost) isManifest() bool { return path.Dir(l.path) == manifestsDir }

// liveVersions are those of the static pods whose manifests can be read. etcd
// has versions of its own.
func liveVersions(env Env) []string {
	var versions []string
	for _, name := range controlPlane() {
		p, err := readStaticPod(env.Host.FS, name, manifestPath(name))
		if err != nil || name == etcdName {
			continue
		}
		if v := imageVersion(p.image()); v != nil {
			versions = append(versions, "v"+v.String())
		}
	}
	return versions
}

// askClusterVersion is ClusterConfiguration's, of an API server that answers
// soon.
func askClusterVersion(ctx context.Context, env Env) (string, error) {
	client, _, err := reachAPI(ctx, env, apiLook)
	if err != nil {
		return "", err
	}
	return clusterVersion(ctx, client)
}
