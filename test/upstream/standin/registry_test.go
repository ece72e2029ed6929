package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRegistry(t *testing.T) {
	hex := strings.Repeat("ab", 32)
	blobs := t.TempDir()
	if err := os.WriteFile(filepath.Join(blobs, hex), []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	handler := newRegistry(blobs, []descriptor{{
		MediaType: "application/vnd.oci.image.manifest.v1+json", Digest: "sha256:" + hex,
		Annotations: map[string]string{"org.opencontainers.image.ref.name": "registry.example/some/image:tag"},
	}})
	for path, want := range map[string]int{
		"/v2/": http.StatusOK,
		"/v2/some/image/manifests/tag?ns=registry.example":    http.StatusOK,
		"/v2/some/image/manifests/sha256:" + hex:              http.StatusOK,
		"/v2/some/image/blobs/sha256:" + hex:                  http.StatusOK,
		"/v2/some/image/manifests/tag?ns=other.example":       http.StatusNotFound,
		"/v2/some/image/manifests/other?ns=registry.example":  http.StatusNotFound,
		"/v2/some/image/blobs/sha256:" + hex[:62] + "cd":      http.StatusNotFound,
		"/v2/some/image/blobs/..%2f..%2fetc%2fpasswd":         http.StatusNotFound,
		"/v2/some/image/tags/list":                            http.StatusNotFound,
		"/v2/some/image/manifests/sha256:" + hex[:62] + "../": http.StatusNotFound,
	} {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
		if w.Code != want {
			t.Errorf("GET %s: %d, want %d", path, w.Code, want)
		}
		if want == http.StatusOK && strings.Contains(path, "manifests") {
			if got := w.Header().Get("Content-Type"); got != "application/vnd.oci.image.manifest.v1+json" || w.Body.String() != "{}" {
				t.Errorf("GET %s: %s %q", path, got, w.Body)
			}
		}
	}
}
