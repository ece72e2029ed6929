// Package oci keeps and carries images: in an OCI layout (a directory), in an
// archive of one (a tar, which "ctr -n k8s.io images import" takes), or in a
// registry.
//
// # What is kept
//
// An Artifact is a manifest with everything below it, usually under a tag: an
// image, an index of images, a signature, an SBOM. A layout or an archive may
// hold several:
//
//	l, err := oci.Open("upgrader.tar")          // or a directory
//	a, err := l.Find("v1.36.3")
//	err = oci.Add(ctx, "upgrader.tar", oci.Artifact{Tag: sigTag, Manifest: signature})
//
// # What is checked
//
// Nothing that is read is believed. An archive may only hold the files of a
// layout, each once, as regular files; the number of files, the size of a
// manifest, the number of manifests and how deep they are nested are bounded. A
// manifest is compared with its digest and size before it is parsed, and every
// other blob while it is read: an altered one ends in an error instead of
// io.EOF. Layers are never unpacked here.
//
// # What survives a crash
//
// An archive is written beside its place and renamed. In a layout each blob is
// written beside its place and renamed, and index.json, which names the
// artifacts, comes last: an interrupted write leaves what was there before, and
// the next one does not write again the blobs that have arrived. Nothing is
// fsynced: whoever unmounts the disk on which an image is carried does that.
package oci
