package download

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// What was interrupted goes on in another process' lifetime.
func TestResumeLater(t *testing.T) {
	data := content(1)
	half := fmt.Sprintf("bytes=%d-", size/2)
	ctx, cancel := context.WithCancel(t.Context())
	s := serve(t, data, first(func(w http.ResponseWriter, r *http.Request, n int) bool {
		w.Header().Set("Content-Length", fmt.Sprint(size))
		w.Header().Set("Last-Modified", "Sat, 21 Nov 2026 10:00:00 GMT")
		_, _ = w.Write(data[:size/2])
		w.(http.Flusher).Flush()
		time.Sleep(100 * time.Millisecond)
		cancel()
		<-r.Context().Done()
		return true
	}))
	f, cache := fetcher(t, Options{Stall: 10 * time.Second})
	files := []File{{"kubelet", s.URL, sumOf(data)}}
	if _, err := f.Fetch(ctx, files); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	cacheIs(t, cache, nil)
	again, _ := fetcher(t, Options{Cache: cache})
	if _, err := again.Fetch(t.Context(), files); err != nil {
		t.Fatal(err)
	}
	cacheIs(t, cache, data)
	// The server knows its file by an ETag, not by the date: all of it came anew.
	if diff := cmp.Diff([]request{{}, {half, "Sat, 21 Nov 2026 10:00:00 GMT"}}, s.requests()); diff != "" {
		t.Error(diff)
	}
}

func TestCache(t *testing.T) {
	data, other := content(1), content(2)
	tests := []struct {
		name string
		put  map[string][]byte // by suffix
		asks []request
	}{
		{"there", map[string][]byte{"": data}, nil},
		{"there, with leftovers", map[string][]byte{"": data, partialSuffix: other[:5]}, nil},
		{"damaged", map[string][]byte{"": other}, []request{{}}},
		{"empty", map[string][]byte{"": nil}, []request{{}}},
		{"killed before the rename", map[string][]byte{partialSuffix: data}, nil},
		{"partial", map[string][]byte{partialSuffix: data[:1000]}, []request{{Range: "bytes=1000-"}}},
		{"partial of something else", map[string][]byte{partialSuffix: other[:1000]}, []request{{Range: "bytes=1000-"}, {}}},
		{"as long, and wrong", map[string][]byte{partialSuffix: other}, []request{{Range: fmt.Sprintf("bytes=%d-", size)}, {}}},
		{"too long", map[string][]byte{partialSuffix: append(bytes.Clone(data), 0)}, []request{{Range: fmt.Sprintf("bytes=%d-", size+1)}, {}}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := serve(t, data, nil)
			f, cache := fetcher(t, Options{})
			for suffix, b := range test.put {
				if err := os.WriteFile(filepath.Join(cache, sumOf(data)+suffix), b, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			paths, err := f.Fetch(t.Context(), []File{{"kubelet", s.URL, sumOf(data)}})
			if err != nil {
				t.Fatal(err)
			}
			if b, err := os.ReadFile(paths[0]); err != nil || !bytes.Equal(b, data) {
				t.Errorf("wrong file, %v", err)
			}
			if test.name != "there, with leftovers" {
				cacheIs(t, cache, data)
			}
			if diff := cmp.Diff(test.asks, s.requests()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Links in the cache are not followed.
func TestCacheLink(t *testing.T) {
	data := content(1)
	s := serve(t, data, nil)
	for _, suffix := range []string{"", partialSuffix} {
		f, cache := fetcher(t, Options{})
		victim := filepath.Join(t.TempDir(), "victim")
		if err := errors.Join(os.WriteFile(victim, []byte("precious"), 0o644), os.Symlink(victim, filepath.Join(cache, sumOf(data)+suffix))); err != nil {
			t.Fatal(err)
		}
		if _, err := f.Fetch(t.Context(), []File{{"kubelet", s.URL, sumOf(data)}}); err == nil {
			t.Errorf("%q: a link was followed", suffix)
		}
		if b, _ := os.ReadFile(victim); string(b) != "precious" {
			t.Errorf("%q: written through a link", suffix)
		}
	}
}

// Many want the same files at once, in one process and in several.
func TestTogether(t *testing.T) {
	a, b := content(1), content(2)
	sa, sb := serve(t, a, first(cut(a))), serve(t, b, nil)
	cache := filepath.Join(t.TempDir(), "c")
	var g sync.WaitGroup
	for range 6 {
		g.Go(func() {
			f, _ := fetcher(t, Options{Cache: cache, Stall: 5 * time.Second})
			files := []File{{"a", sa.URL, sumOf(a)}, {"b", sb.URL, sumOf(b)}, {"a again", sa.URL, sumOf(a)}}
			if _, err := f.Fetch(t.Context(), files); err != nil {
				t.Error(err)
			}
		})
	}
	g.Wait()
	if n, m := len(sa.requests()), len(sb.requests()); n != 2 || m != 1 {
		t.Errorf("fetched %d and %d times", n, m)
	}
	entries, err := os.ReadDir(cache)
	if err != nil || len(entries) != 2 {
		t.Errorf("%v, %v", entries, err)
	}
}
