// Package sbom says what is inside a bundle, and inside the image made of it, as
// an SPDX 2.3 document: every file with its checksums, every component, every
// container image that the bundle brings, and every Go module that is linked into
// a program, by the build information in the program itself.
//
// The document follows from the bytes alone: for the same files it is the same.
// What is linked into the programs of container images is not looked at; the
// images are named by their digests.
package sbom
