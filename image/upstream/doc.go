// Package upstream makes bundles from the release artifacts of Kubernetes,
// containerd, runc and the CNI plugins, at their usual addresses or a mirror.
//
// A lock file pins every artifact by its address and sha256, so that a build asks
// nobody what is right. Only Options.Update asks the projects for the checksums
// that they publish, and writes the file anew. The lock has the projects' own
// addresses; a mirror has the same files at
//
//	<mirror>/<host>/<path>
//
// such as https://mirror.example/dl.k8s.io/release/v1.36.3/bin/linux/amd64/kubelet.
package upstream
