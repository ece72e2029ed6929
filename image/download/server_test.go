package download

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

const size = 3 << 20

// content is what a program looks like from outside: no text.
func content(seed uint64) []byte {
	b := make([]byte, size)
	r := rand.NewChaCha8([32]byte{byte(seed)})
	_, _ = r.Read(b)
	copy(b, "\x7fELF")
	return b
}

func sumOf(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// request is what a server was asked.
type request struct{ Range, IfRange string }

// server is a real one; misbehave is asked first, and tells whether it has
// answered. n counts the requests from 0.
type server struct {
	*httptest.Server
	mu    sync.Mutex
	asked []request
}

type behaviour func(w http.ResponseWriter, r *http.Request, n int) bool

func serve(t *testing.T, data []byte, misbehave behaviour) *server {
	t.Helper()
	s := &server{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		n := len(s.asked)
		s.asked = append(s.asked, request{r.Header.Get("Range"), r.Header.Get("If-Range")})
		s.mu.Unlock()
		if misbehave != nil && misbehave(w, r, n) {
			return
		}
		w.Header().Set("ETag", `"`+sumOf(data)[:8]+`"`)
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *server) requests() []request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.asked)
}

func fetcher(t *testing.T, o Options) (*Fetcher, string) {
	t.Helper()
	if o.Cache == "" {
		o.Cache = filepath.Join(t.TempDir(), "cache", "downloads")
	}
	defaults(&o.Pause, time.Millisecond)
	defaults(&o.Stall, 2*time.Second)
	f, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return f, o.Cache
}

// cacheIs checks that the cache has the right file and nothing else, or nothing
// but what a later attempt may go on from.
func cacheIs(t *testing.T, dir string, want []byte) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	whole := false
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case e.Name() == sumOf(b) && bytes.Equal(b, want):
			whole = true
		case want == nil && (strings.HasSuffix(e.Name(), partialSuffix) || strings.HasSuffix(e.Name(), validatorSuffix)):
		default:
			t.Errorf("the cache has %s, %d bytes", e.Name(), len(b))
		}
	}
	if whole != (want != nil) {
		t.Errorf("whole file in the cache: %v", whole)
	}
}

// cut sends half of what it should and closes the connection.
func cut(data []byte) behaviour {
	return func(w http.ResponseWriter, _ *http.Request, _ int) bool {
		w.Header().Set("Content-Length", fmt.Sprint(len(data)))
		w.Header().Set("ETag", `"`+sumOf(data)[:8]+`"`)
		_, _ = w.Write(data[:len(data)/2])
		return true
	}
}

func says(w http.ResponseWriter, text string) bool {
	_, _ = w.Write([]byte(text))
	return true
}

func first(b behaviour) behaviour {
	return func(w http.ResponseWriter, r *http.Request, n int) bool { return n == 0 && b(w, r, n) }
}

func status(code int, header ...string) behaviour {
	return func(w http.ResponseWriter, _ *http.Request, _ int) bool {
		if len(header) == 2 {
			w.Header().Set(header[0], header[1])
		}
		http.Error(w, "no", code)
		return true
	}
}
