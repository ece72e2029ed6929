package steps

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/node-upgrader/node-upgrader/hostexec"
)

// writable is a Block for each thing that keeps these files from being written
// or replaced: a read-only mount, an immutable file, a directory in its place.
// What ends in a slash is a directory in which files are made. With links it is
// what they lead to that counts.
func writable(env Env, paths ...string) ([]Block, error) {
	var found []*hostexec.ObstacleError
	kept := map[string][]string{} // by obstacle: what cannot be written
	for _, p := range paths {
		err := env.Host.FS.Replaceable(p)
		if dir, ok := strings.CutSuffix(p, "/"); ok {
			err = env.Host.FS.DirWritable(dir)
			p = dir
		}
		var o *hostexec.ObstacleError
		if err != nil && !errors.As(err, &o) {
			return nil, err
		}
		if o == nil {
			continue
		}
		key := o.At + " " + string(o.What)
		if _, known := kept[key]; !known {
			found, kept[key] = append(found, o), nil
		}
		if p != o.At && !slices.Contains(kept[key], p) {
			kept[key] = append(kept[key], p)
		}
	}
	var blocks []Block
	for _, o := range found {
		reason := o.At + " " + string(o.What)
		if names := kept[reason]; len(names) > 0 {
			reason += ": no writing to " + strings.Join(names, ", ")
		}
		blocks = append(blocks, Block{Reason: reason, Hint: removeObstacle(o)})
	}
	return blocks, nil
}

// removeObstacle is the command that does.
func removeObstacle(o *hostexec.ObstacleError) string {
	switch o.What {
	case hostexec.ReadOnly:
		return "mount -o remount,rw " + o.At
	case hostexec.Immutable:
		return "chattr -i " + o.At
	case hostexec.AppendOnly:
		return "chattr -a " + o.At
	case hostexec.MountPoint:
		return fmt.Sprintf("findmnt %s; umount %s", o.At, o.At)
	default:
		return fmt.Sprintf("stat %s; move it away when it is not needed", o.At)
	}
}

// systemUnits is where systemd's administrator has his units, and where the
// upgrader puts the one that mends a node at its next boot.
const systemUnits = "/etc/systemd/system"

// stateWritable blocks where the upgrader cannot keep what it has to know.
func stateWritable(env Env) ([]Block, error) {
	return writable(env, StateDir+"/", Store+"/", env.Record.Path()+"/", env.Record.Path("backup")+"/",
		systemUnits+"/", systemUnits+"/multi-user.target.wants/")
}

// kubeadmTouches is what `kubeadm upgrade` writes on this node, as writable and
// roomFor take it. Certificates count only where they may be renewed.
func kubeadmTouches(env Env) ([]string, error) {
	host := env.Host.FS
	paths := []string{kubernetesDir + "/", kubeadmTmpDir + "/", kubeletConfig, kubeletFlagsFile, path.Join(path.Dir(kubeletConfig), "instance-config.yaml")}
	dirs := map[string]string{kubernetesDir: ".conf"}
	if env.Node.Role == ControlPlane {
		paths = append(paths, manifestsDir+"/")
		dirs[manifestsDir] = ".yaml"
	}
	for dir, suffix := range dirs {
		entries, err := host.ReadDir(dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		for _, e := range entries {
			if strings.HasSuffix(e.Name(), suffix) && !strings.HasPrefix(e.Name(), ".") {
				paths = append(paths, path.Join(dir, e.Name()))
			}
		}
	}
	if renew := env.Options.Kubeadm.CertificateRenewal; env.Node.Role != ControlPlane || renew != nil && !*renew {
		slices.Sort(paths)
		return paths, nil
	}
	for _, name := range []string{
		"apiserver", "apiserver-kubelet-client", "front-proxy-client", "apiserver-etcd-client",
		"etcd/server", "etcd/peer", "etcd/healthcheck-client",
	} {
		for _, suffix := range []string{".crt", ".key"} {
			file := path.Join(kubernetesDir, "pki", name+suffix)
			if there, err := host.Exists(file); err != nil {
				return nil, err
			} else if there {
				paths = append(paths, file)
			}
		}
	}
	slices.Sort(paths)
	return paths, nil
}
