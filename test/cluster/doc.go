// Package cluster makes kubeadm clusters on throwaway hosts (package host).
//
//	c, err := cluster.Up(ctx, ground, cluster.Options{Set: "1.35", Workers: 1})
//	out, err := c.Kubectl(ctx, "get", "nodes")
//
// # What a node looks like
//
// As image-builder lays it out: /usr/bin/{kubelet,kubeadm,kubectl},
// /usr/local/bin/{containerd,containerd-shim-runc-v2,ctr},
// /usr/local/sbin/runc, /opt/cni/bin, /etc/containerd/config.toml (a version 2
// file, whichever containerd reads it), containerd.service, kubelet.service
// with Kubernetes' 10-kubeadm.conf, and a plain bridge network,
// /etc/cni/net.d/10-bridge.conflist. The files are in the folder files. Beside
// the plugins lies ForeignPlugin, which belongs to nobody: a test can prove that
// it is left alone.
//
// The cgroup driver is systemd on a machine with cgroup v2 alone, cgroupfs
// elsewhere (systemd's under v1 loses sandboxes, see docs/proving-ground.md).
//
// # What a cluster looks like
//
// One control plane, "cp" at 10.89.0.11, without its taint, and at most one
// worker, "worker" at 10.89.0.12, joined by token. On each node runs the
// Deployment workload-NODE, pinned there, which counts in WorkloadData on the
// host. Everything is at the versions of one components.Set; all images were
// imported, nothing is ever pulled.
//
// # Snapshots
//
// Three kinds of disk are cached, each made from the one before and named by all
// that goes into it: a node (containerd and images), a control plane (after
// kubeadm init, with its workload ready), and both disks of a cluster with a
// worker. All were powered off in good order. Up copies a snapshot, boots it and
// waits until every container runs that ran before: so restart counts are not 0
// to begin with, compare them. Certificates are valid for a year, so a snapshot
// is made again when it is older than 300 days.
package cluster
