package image

import "time"

// DigestLabel is the label and annotation with the bundle's digest, on an image
// of one architecture.
const DigestLabel = "io.github.node-upgrader.bundle.digest"

// VersionLabel is the label and annotation with the version of Kubernetes that
// an image brings, as v1.36.3.
const VersionLabel = "org.opencontainers.image.version"

// Home is where the source is.
const Home = "https://github.com/node-upgrader/node-upgrader"

// labels are an image's labels, and the annotations of its manifest and index:
// https://github.com/opencontainers/image-spec/blob/main/annotations.md
func labels(o PackOptions, p part) map[string]string {
	all := map[string]string{
		"org.opencontainers.image.title":         "node-upgrader",
		"org.opencontainers.image.description":   "Upgrades the Kubernetes components of the node it runs on, in place",
		"org.opencontainers.image.licenses":      "Apache-2.0",
		"org.opencontainers.image.vendor":        "node-upgrader",
		"org.opencontainers.image.source":        Home,
		"org.opencontainers.image.url":           Home,
		"org.opencontainers.image.documentation": Home + "/blob/main/README.md",
		"org.opencontainers.image.created":       o.Created.UTC().Format(time.RFC3339),
		VersionLabel:                             p.Manifest.KubernetesVersion,
	}
	rev := o.Revision
	if rev == "" {
		rev = revision(p.exe)
	}
	if rev != "" {
		all["org.opencontainers.image.revision"] = rev
	}
	return all
}
