// Package image is the bundle: what the upgrader installs, how it is built,
// checked, staged on a node and packed as a container image.
//
// # A bundle
//
// A bundle is a directory. bundle.json names every other file in it, with its
// sha256, size, mode, component and place on the host. The digest of
// bundle.json's bytes is the bundle's digest, so that it covers every byte:
//
//	bundle.json
//	bundle.json.sig        if it is signed
//	cni-plugins/bridge …
//	containerd/containerd, containerd-shim-runc-v2, ctr
//	kubeadm/kubeadm
//	kubectl/kubectl
//	kubelet/kubelet
//	runc/runc
//	images/oci-layout, index.json, blobs/sha256/…   if it was built with images
//
// Open checks everything that can be checked without reading the files: the
// manifest, strictly, and then the directory, without following a link. A file
// that is missing, surplus, of another size, a symbolic link, a device, or
// hard-linked (whoever holds the other name could change it after the check) is
// refused by name with a BadBundleError. Verify does the same and reads every
// byte. The owner and the mode that files have in the bundle do not matter;
// what is installed gets the manifest's mode.
//
// bundle.json is read strictly: an unknown, missing, repeated or differently
// spelled key, an escaped character that need not be escaped, or anything after
// the closing brace is an error. Two readers can therefore not see two
// different manifests in the same signed bytes. White space is free.
//
// # Images
//
// The component images is an OCI layout with the container images that kubeadm
// and containerd of the bundle need. Its files have no place on the host; each
// blob is named by its own sha256, in the manifest as well. An image that is an
// index in its registry is the index here too, of which the bundle's platform
// alone is there: so it has the same digest on a node as if it had been pulled.
// Bundle.Images walks the layout and refuses what does not fit together. A
// bundle with images has schema version 2.
//
// # Signatures
//
// Beside bundle.json may lie bundle.json.sig, its signature; no other file may be
// there without the manifest naming it. Since the manifest has every file's
// sha256, the signature covers every byte that is installed. It is staged with
// the bundle and packed into the image, and is not part of the digest: signed
// anew, a bundle is the same bundle. Whether one is required, and by which keys,
// is the caller's to say (VerifySignature). See package trust.
//
// # Staging
//
// Stage copies a bundle and the upgrader itself to the host:
//
//	<store>/<sha256 in hex>/bundle/…    the files, with the manifest's modes
//	<store>/<sha256 in hex>/upgrader    the running executable
//	<store>/<sha256 in hex>/stamp.json  what the files looked like when they were checked
//
// The bytes are hashed on their way from the source to the stage. The whole is
// put together in a temporary sibling and renamed into place, so a stage is
// there or it is not. What a killed attempt left behind is removed by the next
// one. A lock on the store keeps two attempts apart.
//
// The files of the bundle are not fsynced: whoever installs one hashes it again
// and syncs what it wrote. After a crash of the machine a staged file may
// therefore be wrong. That is what the stamp is for: it holds inode, size, mtime
// and ctime of each file and the kernel's boot id. Only when all of them fit and
// the boot id is the present one is a stage trusted by stat alone; otherwise
// every byte is hashed again. The upgrader and the stamp are fsynced.
//
// # Building
//
// Build makes a bundle from a directory with bin/ and cni/. Only the binaries
// that a bundle has are taken from bin/; in cni/ only the plugins of the CNI
// project may lie, so that a node's foreign plugins are never replaced. The
// versions are asked of the binaries themselves, and a set of them that does not
// fit together is refused: see CheckVersions. The same input gives the same
// digest. BuildSet does it for several architectures at once.
//
// Pack makes a container image of a bundle and an upgrader, from scratch, or an
// index of images for several architectures. One layer a component: what did not
// change is not transferred again. Package oci writes it to an archive that
// "ctr -n k8s.io images import" takes, or carries it elsewhere.
package image
