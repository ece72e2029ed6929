package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// A descriptor is what an OCI layout says of a manifest.
// https://github.com/opencontainers/image-spec/blob/main/image-layout.md
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Annotations map[string]string `json:"annotations"`
}

// registry serves the images of a layout, read only, to a client that mirrors
// all registries by it: the one that was meant is in the query's ns, as containerd
// says it. https://github.com/containerd/containerd/blob/main/docs/hosts.md
func registry(layout, listen string) error {
	data, err := os.ReadFile(filepath.Join(layout, "index.json"))
	if err != nil {
		return err
	}
	var index struct{ Manifests []descriptor }
	if err := json.Unmarshal(data, &index); err != nil {
		return fmt.Errorf("%s: %w", layout, err)
	}
	handler := newRegistry(filepath.Join(layout, "blobs", "sha256"), index.Manifests)
	server := &http.Server{Addr: listen, Handler: handler, ReadHeaderTimeout: 5 * time.Second}
	return server.ListenAndServe()
}

var (
	object = regexp.MustCompile(`^/v2/(.+)/(manifests|blobs)/([^/]+)$`)
	digest = regexp.MustCompile(`^sha256:([0-9a-f]{64})$`)
)

// newRegistry is the part of the distribution protocol that a pull needs.
// https://github.com/opencontainers/distribution-spec/blob/main/spec.md
func newRegistry(blobs string, manifests []descriptor) http.Handler {
	byTag := map[string]descriptor{}
	byDigest := map[string]descriptor{}
	for _, d := range manifests {
		byTag[d.Annotations["org.opencontainers.image.ref.name"]] = d
		byDigest[d.Digest] = d
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v2/" {
			return // 200: this is a registry
		}
		wants := object.FindStringSubmatch(r.URL.Path)
		if wants == nil {
			http.NotFound(w, r)
			return
		}
		name, kind, ref := wants[1], wants[2], wants[3]
		w.Header().Set("Content-Type", "application/octet-stream")
		if kind == "manifests" {
			d, known := byDigest[ref]
			if !known {
				d, known = byTag[r.URL.Query().Get("ns")+"/"+name+":"+ref]
			}
			if !known {
				http.NotFound(w, r)
				return
			}
			w.Header().Set("Content-Type", d.MediaType)
			w.Header().Set("Docker-Content-Digest", d.Digest)
			ref = d.Digest
		}
		hex := digest.FindStringSubmatch(ref)
		if hex == nil {
			http.NotFound(w, r)
			return
		}
		http.ServeFile(w, r, filepath.Join(blobs, strings.ToLower(hex[1])))
	})
}
