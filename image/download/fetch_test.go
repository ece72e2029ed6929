package download

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestFetch(t *testing.T) {
	data, other := content(1), content(2)
	half := fmt.Sprintf("bytes=%d-", size/2)
	tag := `"` + sumOf(data)[:8] + `"`
	page := []byte("\n<!DOCTYPE html><html><body>Please log in</body></html>")
	stall := func(w http.ResponseWriter, r *http.Request, _ int) bool {
		w.Header().Set("Content-Length", fmt.Sprint(size))
		w.Header().Set("ETag", tag)
		_, _ = w.Write(data[:size/2])
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		return true
	}
	tests := []struct {
		name      string
		misbehave behaviour
		want      string    // part of the error; "": fetched
		asked     []request // nil: whatever
	}{
		{"good", nil, "", []request{{}}},
		{"cut", first(cut(data)), "", []request{{}, {half, tag}}},
		{"cut again and again", func(w http.ResponseWriter, r *http.Request, n int) bool {
			if n == 12 {
				return false
			}
			start := size * n / 16
			w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", start, size-1, size))
			w.Header().Set("Content-Length", fmt.Sprint(size-start))
			if n > 0 {
				w.WriteHeader(http.StatusPartialContent)
			}
			_, _ = w.Write(data[start : size*(n+1)/16])
			return true
		}, "", nil},
		{"stalls", first(stall), "", []request{{}, {half, tag}}},
		{"always stalls", stall, "nothing has come for too long (tried 3 times)", nil},
		{"stalls before it answers", func(_ http.ResponseWriter, r *http.Request, _ int) bool { <-r.Context().Done(); return true }, "tried 3 times", nil},
		{"cut, then ignores Range", func(w http.ResponseWriter, r *http.Request, n int) bool {
			if n == 0 {
				return cut(data)(w, r, n)
			}
			_, _ = w.Write(data)
			return true
		}, "", []request{{}, {half, tag}}},
		{"always cut, ignores Range", cut(data), "the connection was cut (tried 3 times)", []request{{}, {half, tag}, {half, tag}}},
		{"cut, then another part", func(w http.ResponseWriter, r *http.Request, n int) bool {
			switch n {
			case 0:
				return cut(data)(w, r, n)
			case 1:
				w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", size/2+100, size-1, size))
				w.WriteHeader(http.StatusPartialContent)
				_, _ = w.Write(data[size/2+100:])
				return true
			}
			return false
		}, "", []request{{}, {half, tag}, {}}},
		{"cut, then nonsense of a part", func(w http.ResponseWriter, r *http.Request, n int) bool {
			switch n {
			case 0:
				return cut(data)(w, r, n)
			case 1:
				w.Header().Set("Content-Range", "half of it")
				w.WriteHeader(http.StatusPartialContent)
				return true
			}
			return false
		}, "", []request{{}, {half, tag}, {}}},
		{"cut, then another file", func(w http.ResponseWriter, r *http.Request, n int) bool {
			return n == 0 && cut(other)(w, r, n)
		}, "", []request{{}, {half, `"` + sumOf(other)[:8] + `"`}}}, // If-Range does not fit: all of it comes
		{"cut, then another file without an ETag", func(w http.ResponseWriter, r *http.Request, n int) bool {
			if n == 0 {
				w.Header().Set("Content-Length", fmt.Sprint(size))
				_, _ = w.Write(other[:size/2])
				return true
			}
			return false
		}, "", []request{{}, {half, ""}, {}}}, // put together and wrong: once more
		{"length too long", func(w http.ResponseWriter, _ *http.Request, _ int) bool {
			w.Header().Set("Content-Length", fmt.Sprint(size+1))
			_, _ = w.Write(data)
			return true
		}, "", []request{{}}},
		{"length too short", func(w http.ResponseWriter, _ *http.Request, _ int) bool {
			w.Header().Set("Content-Length", fmt.Sprint(size-1))
			_, _ = w.Write(data[:size-1])
			return true
		}, "(3145727 bytes)", []request{{}}},
		{"no length, cut at the end of a chunk", first(func(w http.ResponseWriter, _ *http.Request, _ int) bool {
			w.Header().Set("Connection", "close")
			w.Header().Set("Transfer-Encoding", "identity")
			_, _ = w.Write(data[:size/2])
			return true
		}), "", []request{{}, {}}},
		{"wrong file", func(w http.ResponseWriter, _ *http.Request, _ int) bool { _, _ = w.Write(other); return true }, "sha256 is " + sumOf(other) + " instead of " + sumOf(data), nil},
		{"wrong file, with its length", func(w http.ResponseWriter, r *http.Request, _ int) bool {
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(other))
			return true
		}, "sha256 is " + sumOf(other), []request{{}}},
		{"HTML page", func(w http.ResponseWriter, _ *http.Request, _ int) bool { _, _ = w.Write(page); return true }, "answers with an HTML page", []request{{}}},
		{"HTML page as a program", func(w http.ResponseWriter, _ *http.Request, _ int) bool {
			w.Header().Set("Content-Type", "application/octet-stream")
			_, _ = w.Write(page)
			return true
		}, "answers with an HTML page", []request{{}}},
		{"404", status(404), "answers 404 Not Found", []request{{}}},
		{"403", status(403), "answers 403 Forbidden", []request{{}}},
		{"204", func(w http.ResponseWriter, _ *http.Request, _ int) bool { w.WriteHeader(204); return true }, "answers 204", []request{{}}},
		{"206 unasked", func(w http.ResponseWriter, _ *http.Request, _ int) bool { w.WriteHeader(206); return true }, "answers 206", []request{{}}},
		{"503 once", first(status(503)), "", []request{{}, {}}},
		{"500 for ever", status(500), "answers 500 Internal Server Error (tried 3 times)", []request{{}, {}, {}}},
		{"429 with a wish", first(status(429, "Retry-After", "1")), "", []request{{}, {}}},
		{"loop of redirects", func(w http.ResponseWriter, r *http.Request, _ int) bool {
			http.Redirect(w, r, "/again", http.StatusFound)
			return true
		}, "redirects more than 10 times", nil},
		{"redirect to http elsewhere", func(w http.ResponseWriter, r *http.Request, _ int) bool {
			http.Redirect(w, r, "http://192.0.2.1/kubelet", http.StatusFound)
			return true
		}, "download http://192.0.2.1/kubelet: http is not allowed", []request{{}}},
		{"redirect to a file", func(w http.ResponseWriter, r *http.Request, _ int) bool {
			http.Redirect(w, r, "file:///etc/passwd", http.StatusFound)
			return true
		}, `scheme "file" is not known`, []request{{}}},
		{"too large, and says so", func(w http.ResponseWriter, _ *http.Request, _ int) bool {
			w.Header().Set("Content-Length", "5000000000")
			_, _ = w.Write(data)
			return true
		}, "is larger than a file may be: 4 MiB", []request{{}}},
		{"too large, endless", func(w http.ResponseWriter, _ *http.Request, _ int) bool {
			for {
				if _, err := w.Write(other); err != nil {
					return true
				}
			}
		}, "is larger than a file may be: 4 MiB", []request{{}}},
		{"empty", func(_ http.ResponseWriter, _ *http.Request, _ int) bool { return true }, "(0 bytes)", nil},
		{"closed at once", func(_ http.ResponseWriter, _ *http.Request, _ int) bool { panic(http.ErrAbortHandler) }, "tried 3 times", nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, data, test.misbehave)
			var done, total int64
			f, cache := fetcher(t, Options{Attempts: 3, MaxSize: 4 << 20, Progress: func(d, n int64) { done, total = d, n }})
			start := time.Now()
			paths, err := f.Fetch(t.Context(), []File{{"kubelet", s.URL + "/kubelet", sumOf(data)}})
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Fatalf("got %v, want %q", err, test.want)
			}
			if err == nil {
				cacheIs(t, cache, data)
				if paths[0] != filepath.Join(cache, sumOf(data)) {
					t.Errorf("path %s", paths[0])
				}
				if done != size || total < size {
					t.Errorf("progress ended at %d of %d", done, total)
				}
			} else {
				cacheIs(t, cache, nil)
				var own *Error
				if !errors.As(err, &own) || !strings.HasPrefix(err.Error(), "kubelet: download ") {
					t.Errorf("%T: %v", err, err)
				}
			}
			if test.asked != nil {
				if diff := cmp.Diff(test.asked, s.requests()); diff != "" {
					t.Error(diff)
				}
			}
			if strings.Contains(test.name, "wish") && time.Since(start) < time.Second {
				t.Error("did not wait")
			}
		})
	}
}

// A wrong file leaves nothing behind that a later attempt would go on from.
func TestWrongLeavesNothing(t *testing.T) {
	data, other := content(1), content(2)
	s := serve(t, data, first(func(w http.ResponseWriter, r *http.Request, _ int) bool {
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(other))
		return true
	}))
	f, cache := fetcher(t, Options{})
	files := []File{{"kubelet", s.URL, sumOf(data)}}
	if _, err := f.Fetch(t.Context(), files); err == nil {
		t.Fatal("taken")
	}
	if entries, err := os.ReadDir(cache); err != nil || len(entries) > 0 {
		t.Errorf("%v, %v", entries, err)
	}
	if _, err := f.Fetch(t.Context(), files); err != nil {
		t.Error(err)
	}
	cacheIs(t, cache, data)
}
