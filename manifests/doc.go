// Package manifests is the YAML that an orchestrator applies: the pod that
// upgrades one node, the same as a Job, and the rights that it needs.
//
// # The pod
//
// Pod has one init container for each step, named as the step, in order, and a
// last container that verifies the node. Where it drains, the first init
// container is no step: "forecast" runs `drain --dry-run`, and keeps the pod
// from changing anything while something forbids the drain. An init container that fails is
// started again by the kubelet, and a finished one is not, so the kubelet
// drives the upgrade. When the pod's sandbox is made anew all of them run
// again; a step that has nothing left to do ends at once.
//
//   - It is privileged and shares the host's PID namespace: that is how a step
//     enters the host. It needs no volume of the host and no binary but its own.
//   - It is on the host's network, so that it survives the CNI plugins it
//     replaces and a node whose pod network is down. It reaches the API server by
//     the address in KUBERNETES_SERVICE_HOST and resolves names as the node
//     does: the cluster's DNS may be among what the drain evicts.
//   - It is pinned by nodeName, tolerates every taint, and is
//     system-node-critical: neither a cordon nor pressure on the node keeps it
//     away or evicts it. The kubelet makes room for such a pod by evicting others,
//     so what it asks for is kept small; the work on the host is done by a
//     systemd unit outside the pod's cgroup.
//   - It has UpgraderLabel, by which the drain leaves it alone.
//   - No service account token is mounted but into forecast, drain and uncordon, which
//     talk to the API server: a projected one that expires.
//   - The result of each container is its termination message: JSON.
//
// Use an image by digest (name@sha256:…). A tag can be moved between two nodes
// of one cluster; "latest", or no tag, which means the same, is refused.
//
// # The Job
//
// Job wraps the same pod. It is for clusters where the pod may be deleted
// during the upgrade, by a person or a controller: the Job starts another one,
// which goes on, but only after the old one has ended. Once it gives up, its
// pod is deleted and the logs with it; what was done on the host stays in
// /var/lib/upgrader there.
//
// # Rights
//
// RBAC is what the drain and the uncordon need of the API, and no more.
//
// There is no Plan for the system-upgrade-controller: it mounts the host's root
// into a Job of its own making, whose containers and token this package could
// not restrict.
//
// # Images
//
// Images is a ConfigMap for orchestrators: which image brings which version of
// Kubernetes, by digest. It is found by its label ImagesLabel.
//
//	image := configMap.Data["v1.36.3"] // registry.local/upgrader@sha256:…
//
// # Golden files
//
// testdata holds what is rendered. After a change, read the difference that
// "go test ./manifests -update" makes.
package manifests
