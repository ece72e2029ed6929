package oci

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
)

// server is a registry that counts what it is asked for, and may get in the way.
type server struct {
	*httptest.Server
	CA string // PEM file

	mu       sync.Mutex
	requests []string
	before   func(w http.ResponseWriter, r *http.Request) (handled bool)
}

func serve(t *testing.T, o ...registry.Option) *server {
	t.Helper()
	s := &server{}
	behind := registry.New(append(o, registry.Logger(log.New(io.Discard, "", 0)))...)
	s.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.requests = append(s.requests, r.Method+" "+r.URL.Path)
		before := s.before
		s.mu.Unlock()
		if before == nil || !before(w, r) {
			behind.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(s.Close)
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.CA = filepath.Join(t.TempDir(), "ca.crt")
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	if err := os.WriteFile(s.CA, block, 0o644); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *server) place(t *testing.T, repository string) Place {
	t.Helper()
	p, err := ParsePlace("docker://" + strings.TrimPrefix(s.URL, "https://") + "/" + repository)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// count tells how many requests since the last call begin so.
func (s *server) count(prefix string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, r := range s.requests {
		if strings.HasPrefix(r, prefix) {
			n++
		}
	}
	s.requests = nil
	return n
}

func client(t *testing.T, o RegistryOptions) *Registries {
	t.Helper()
	r, err := NewRegistries(o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// both trusts two registries.
func both(t *testing.T, a, b *server) *Registries {
	t.Helper()
	one, err1 := os.ReadFile(a.CA)
	two, err2 := os.ReadFile(b.CA)
	file := filepath.Join(t.TempDir(), "ca.crt")
	if err := errors.Join(err1, err2, os.WriteFile(file, append(one, two...), 0o644)); err != nil {
		t.Fatal(err)
	}
	return client(t, RegistryOptions{CAFile: file})
}

// attachedFixture are a signature by tag for the index and one for an architecture,
// an SBOM that is signed, and a referrer.
func attachedFixture(t *testing.T, index v1.ImageIndex) []Artifact {
	t.Helper()
	list, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	sbom := note(t, "sbom")
	referrer, ok := mutate.Subject(note(t, "referrer"), v1.Descriptor{
		MediaType: list.MediaType, Digest: digestOf(t, index), Size: size(t, index),
	}).(v1.Image)
	if !ok {
		t.Fatal("no image")
	}
	return []Artifact{
		{Tag: AttachedTag(digestOf(t, index), Signature), Manifest: note(t, "signature")},
		{Tag: AttachedTag(list.Manifests[0].Digest, Signature), Manifest: note(t, "signature of one architecture")},
		{Tag: AttachedTag(digestOf(t, index), SBOM), Manifest: sbom},
		{Tag: AttachedTag(digestOf(t, sbom), Signature), Manifest: note(t, "signature of the sbom")},
		{Manifest: referrer},
	}
}

func size(t *testing.T, m Manifest) int64 {
	t.Helper()
	n, err := m.Size()
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// The whole way: registry, archive, layout, another registry; at each place there
// is the same, and the same again sends nothing.
func TestMirror(t *testing.T) {
	for _, api := range []bool{true, false} {
		t.Run(fmt.Sprintf("referrers API %v", api), func(t *testing.T) {
			from, to := serve(t, registry.WithReferrersSupport(api)), serve(t, registry.WithReferrersSupport(api))
			registries := both(t, from, to)
			index := testImage(t)
			source := from.place(t, "build/upgrader:v1.36.3")
			all := append(attachedFixture(t, index), Artifact{Tag: "v1.36.3", Manifest: index})
			if err := registries.Push(t.Context(), source.Repository, all...); err != nil {
				t.Fatal(err)
			}
			var want []string
			for _, a := range all[:len(all)-1] {
				want = append(want, a.id())
			}
			slices.Sort(want)
			dir := t.TempDir()
			way := []Place{
				source,
				{Path: filepath.Join(dir, "a.tar")},
				{Path: filepath.Join(dir, "layout"), Layout: true},
				to.place(t, "mirror/upgrader"),
				{Path: filepath.Join(dir, "b.tar")},
			}
			way[3].Tag = "v1.36.3"
			for i := range len(way) - 1 {
				for again := range 2 {
					to.count("")
					m, err := Mirror(t.Context(), MirrorOptions{Source: way[i], Dest: way[i+1], Registries: registries})
					if err != nil {
						t.Fatal(err)
					}
					if m.Digest != digestOf(t, index).String() || !strings.HasSuffix(m.Image, "upgrader@"+m.Digest) {
						t.Errorf("%s: %s, want %s", way[i+1], m.Image, digestOf(t, index))
					}
					slices.Sort(m.Attached)
					if diff := cmp.Diff(want, m.Attached); diff != "" {
						t.Errorf("%s: attached (-want +got):\n%s", way[i+1], diff)
					}
					if sent := to.count("PUT /v2/mirror/upgrader/blobs/"); way[i+1].Path == "" && (sent == 0) != (again == 1) {
						t.Errorf("%d blobs were sent, time %d", sent, again+1)
					}
				}
			}
			a, err1 := os.ReadFile(way[1].Path)
			if l := open(t, way[4].Path); l.Verify() != nil || len(a) == 0 || err1 != nil {
				t.Errorf("the last archive: %v %v", l.Verify(), err1)
			}
		})
	}
}

// A registry that breaks off leaves no tag; the same again goes on.
func TestMirrorInterrupted(t *testing.T) {
	to := serve(t)
	registries := client(t, RegistryOptions{CAFile: to.CA})
	all := signedImage(t)
	o := MirrorOptions{Source: Place{Path: archiveOf(t, all)}, Dest: to.place(t, "upgrader:v1.36.3"), Registries: registries}
	ctx, cancel := context.WithCancel(t.Context())
	var n atomic.Int32
	to.before = func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/blobs/") && n.Add(1) == 4 {
			cancel()
		}
		return false
	}
	if _, err := Mirror(ctx, o); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	if _, err := registries.Find(t.Context(), o.Dest.Repository, "v1.36.3", ""); !errors.Is(err, ErrNotFound) {
		t.Errorf("half an image has its tag: %v", err)
	}
	to.count("")
	if _, err := Mirror(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	list, _, err := collect(all)
	if err != nil {
		t.Fatal(err)
	}
	if sent := to.count("PUT /v2/upgrader/blobs/"); sent > len(list)-3 {
		t.Errorf("%d blobs were sent, all of %d", sent, len(list))
	}
}

// A registry that has something else under the tag afterwards is found out.
func TestMirrorAltered(t *testing.T) {
	to := serve(t)
	other := serve(t)
	registries := both(t, to, other)
	place := to.place(t, "upgrader:v1.36.3")
	if err := registries.Push(t.Context(), other.place(t, "upgrader").Repository, Artifact{Tag: "v1.36.3", Manifest: testImage(t)}); err != nil {
		t.Fatal(err)
	}
	to.before = func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodGet || !strings.HasSuffix(r.URL.Path, "/manifests/v1.36.3") {
			return false
		}
		res, err := other.Client().Get(other.URL + r.URL.Path)
		if err != nil {
			t.Error(err)
			return false
		}
		defer res.Body.Close()
		w.Header().Set("Content-Type", res.Header.Get("Content-Type"))
		if _, err := io.Copy(w, res.Body); err != nil {
			t.Error(err)
		}
		return true
	}
	_, err := Mirror(t.Context(), MirrorOptions{Source: Place{Path: archiveOf(t, signedImage(t))}, Dest: place, Registries: registries})
	if err == nil || !strings.Contains(err.Error(), "instead of sha256:") {
		t.Errorf("got %v", err)
	}
}

func TestMirrorRefuses(t *testing.T) {
	s := serve(t)
	clear := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(clear.Close)
	authority := client(t, RegistryOptions{CAFile: s.CA})
	two := append(signedImage(t), Artifact{Tag: "v1.35.4", Manifest: testImage(t)})
	fixed := s.place(t, "upgrader")
	fixed.Digest = "sha256:" + strings.Repeat("0", 64)
	gone := Place{Repository: s.place(t, "upgrader").Repository, Tag: "gone"}
	var status int
	s.before = func(w http.ResponseWriter, _ *http.Request) bool {
		if status != 0 {
			w.WriteHeader(status)
		}
		return status != 0
	}
	for _, test := range []struct {
		name       string
		o          MirrorOptions
		status     int
		want, hint string
	}{
		{"unknown authority", MirrorOptions{Dest: s.place(t, "u:v1"), Registries: client(t, RegistryOptions{})}, 0, "certificate", "--registry-ca"},
		{"password", MirrorOptions{Dest: s.place(t, "u:v1")}, 401, "401", "docker login"},
		{"forbidden", MirrorOptions{Dest: s.place(t, "u:v1")}, 403, "403", "docker login"},
		{"broken", MirrorOptions{Dest: s.place(t, "u:v1")}, 507, "507", "full or broken"},
		{"too large", MirrorOptions{Dest: s.place(t, "u:v1")}, 413, "413", "client_max_body_size"},
		{"not there", MirrorOptions{Source: gone, Dest: Place{Path: filepath.Join(t.TempDir(), "a.tar")}}, 0, "no such image", "name and tag"},
		{"no tag", MirrorOptions{Source: s.place(t, "u"), Dest: Place{Path: filepath.Join(t.TempDir(), "a.tar")}}, 0, "no tag", ":TAG"},
		{"several", MirrorOptions{Source: Place{Path: archiveOf(t, two)}, Dest: s.place(t, "u:v1")}, 0, "2 images: v1.36.3, v1.35.4", "--tag"},
		{"another digest", MirrorOptions{Dest: fixed}, 0, "not sha256:0000", ""},
		{"nobody listens", MirrorOptions{Dest: Place{Repository: mustPlace(t, "127.0.0.1:1/u").Repository, Tag: "v1"}}, 0, "refused", "does it run"},
	} {
		t.Run(test.name, func(t *testing.T) {
			status = test.status
			if test.o.Registries == nil {
				test.o.Registries = authority
			}
			if test.o.Source == (Place{}) {
				test.o.Source = Place{Path: archiveOf(t, signedImage(t))}
			}
			_, err := Mirror(t.Context(), test.o)
			var e *Error
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			} else if errors.As(err, &e) && !strings.Contains(e.Hint, test.hint) || e == nil && test.hint != "" {
				t.Errorf("%v: hint %+v, want %q", err, e, test.hint)
			}
			if test.o.Dest.Path != "" {
				if _, err := os.Stat(test.o.Dest.Path); err == nil {
					t.Error("something was written")
				}
			}
		})
	}
	t.Run("clear text on loopback", func(t *testing.T) {
		place := mustPlace(t, strings.TrimPrefix(clear.URL, "http://")+"/u:v1")
		if _, err := Mirror(t.Context(), MirrorOptions{Source: Place{Path: archiveOf(t, signedImage(t))}, Dest: place, Registries: authority}); err != nil {
			t.Error(err)
		}
	})
}

func mustPlace(t *testing.T, s string) Place {
	t.Helper()
	p, err := ParsePlace(s)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// The library falls back to plain HTTP for private addresses. Nothing may go
// there that was not allowed.
func TestGuard(t *testing.T) {
	var asked []string
	next := roundTripper(func(r *http.Request) (*http.Response, error) {
		asked = append(asked, r.URL.String())
		return nil, io.EOF
	})
	for _, plain := range []bool{false, true} {
		for _, url := range []string{
			"https://registry.example/v2/", "http://127.0.0.1:5000/v2/", "http://[::1]/v2/", "http://localhost/v2/",
			"http://10.0.0.1/v2/", "http://registry.local/v2/", "http://localhost.example/v2/", "http://192.168.1.1:5000/v2/",
		} {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
			if err != nil {
				t.Fatal(err)
			}
			_, err = guard{next, plain}.RoundTrip(req)
			if err == nil {
				t.Error("no error")
			}
		}
	}
	want := []string{"https://registry.example/v2/", "http://127.0.0.1:5000/v2/", "http://[::1]/v2/", "http://localhost/v2/"}
	want = append(want, append(want, "http://10.0.0.1/v2/", "http://registry.local/v2/", "http://localhost.example/v2/", "http://192.168.1.1:5000/v2/")...)
	if diff := cmp.Diff(want, asked); diff != "" {
		t.Error(diff)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
