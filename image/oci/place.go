package oci

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
)

// Place is where an image is or shall be.
type Place struct {
	Path   string // of an archive or of a layout's directory; "": in a registry
	Layout bool   // Path is, or shall be, a directory
	// In a registry. Tag and Digest may be empty.
	Repository name.Repository
	Tag        string
	Digest     string
}

// Prefixes that say what a place is, as skopeo has them.
const (
	prefixLayout   = "oci:"
	prefixArchive  = "oci-archive:"
	prefixRegistry = "docker://"
)

// ParsePlace reads where an image is: docker://REFERENCE, oci:DIRECTORY or
// oci-archive:FILE. Without a prefix it is a path where it begins with "/", "./"
// or "../", ends with ".tar" or "/", or is there; else it is a reference. A path
// is a layout's where a directory is, or where it ends with "/".
//
// A reference needs its registry: where nothing is said, nothing is asked of
// Docker Hub.
func ParsePlace(s string) (Place, error) {
	if path, ok := strings.CutPrefix(s, prefixLayout); ok {
		return pathPlace(path, true)
	}
	if path, ok := strings.CutPrefix(s, prefixArchive); ok {
		return pathPlace(path, false)
	}
	if ref, ok := strings.CutPrefix(s, prefixRegistry); ok {
		return registryPlace(ref)
	}
	fi, err := os.Stat(s)
	there := err == nil
	local := strings.HasPrefix(s, "/") || strings.HasPrefix(s, "./") || strings.HasPrefix(s, "../") ||
		strings.HasSuffix(s, ".tar") || strings.HasSuffix(s, "/")
	if there || local {
		return pathPlace(s, there && fi.IsDir() || !there && strings.HasSuffix(s, "/"))
	}
	return registryPlace(s)
}

func pathPlace(path string, layout bool) (Place, error) {
	if path == "" {
		return Place{}, errors.New("no path is given")
	}
	return Place{Path: path, Layout: layout}, nil
}

func registryPlace(s string) (Place, error) {
	ref, digest, _ := strings.Cut(s, "@")
	repository, tag, _ := cutTag(ref)
	host, _, ok := strings.Cut(repository, "/")
	if !ok || !strings.ContainsAny(host, ".:") && host != "localhost" {
		return Place{}, &Error{
			fmt.Errorf("%q is no registry/repository[:tag][@digest], and no file or directory is there", s),
			"give the registry with it, as in registry.example/upgrader:v1.36.3, or begin a path with ./",
		}
	}
	p := Place{Tag: tag, Digest: digest}
	var err error
	if p.Repository, err = name.NewRepository(repository, name.StrictValidation); err != nil {
		return Place{}, err
	}
	if tag != "" {
		if _, err := name.NewTag(ref, name.StrictValidation); err != nil {
			return Place{}, err
		}
	}
	if strings.Contains(s, "@") {
		if _, err := name.NewDigest(repository+"@"+digest, name.StrictValidation); err != nil {
			return Place{}, err
		}
	}
	return p, nil
}

// String is what ParsePlace reads.
func (p Place) String() string {
	switch {
	case p.Layout:
		return prefixLayout + p.Path
	case p.Path != "":
		return p.Path
	}
	s := p.Repository.Name()
	if p.Tag != "" {
		s += ":" + p.Tag
	}
	if p.Digest != "" {
		s += "@" + p.Digest
	}
	return s
}
