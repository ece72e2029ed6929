package download

import (
	"bytes"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestKilled kills a process that fetches, again and again, a little later each
// time. What it leaves is never a wrong file, and in the end it is not much more
// that was sent than the file has bytes.
func TestKilled(t *testing.T) {
	data := content(1)
	if cache := os.Getenv("DOWNLOAD_TEST_CACHE"); cache != "" {
		f, _ := fetcher(t, Options{Cache: cache, Stall: time.Minute})
		if _, err := f.Fetch(t.Context(), []File{{"kubelet", os.Getenv("DOWNLOAD_TEST_URL"), sumOf(data)}}); err != nil {
			t.Fatal(err)
		}
		return
	}
	s := serve(t, data, func(w http.ResponseWriter, r *http.Request, n int) bool {
		if n > 0 && r.Header.Get("Range") != "" && r.Header.Get("If-Range") == "" {
			t.Error("went on without a validator")
		}
		w.Header().Set("ETag", `"kubelet"`)
		http.ServeContent(slowWriter{w}, r, "", time.Time{}, bytes.NewReader(data))
		return true
	})
	cache := t.TempDir()
	killed, resumed := 0, 0
	for i := range 40 {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestKilled$") //nolint:gosec // itself
		cmd.Env = append(os.Environ(), "DOWNLOAD_TEST_CACHE="+cache, "DOWNLOAD_TEST_URL="+s.URL)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		asked := len(s.requests())
		for started := time.Now(); len(s.requests()) == asked && time.Since(started) < 10*time.Second; {
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Duration(20+5*i) * time.Millisecond)
		if err := cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			t.Fatal(err)
		}
		err := cmd.Wait()
		if err == nil {
			break
		}
		if cmd.ProcessState.Exited() {
			t.Fatal(err)
		}
		killed++
		if _, err := os.Stat(filepath.Join(cache, sumOf(data))); err == nil { // between the rename and its end
			break
		}
		cacheIs(t, cache, nil)
	}
	for _, r := range s.requests() {
		if strings.HasPrefix(r.Range, "bytes=") {
			resumed++
		}
	}
	f, _ := fetcher(t, Options{Cache: cache})
	if _, err := f.Fetch(t.Context(), []File{{"kubelet", s.URL, sumOf(data)}}); err != nil {
		t.Fatal(err)
	}
	cacheIs(t, cache, data)
	if killed == 0 || resumed == 0 {
		t.Errorf("killed %d times, resumed %d times", killed, resumed)
	}
	t.Logf("killed %d times, resumed %d times", killed, resumed)
}

// slowWriter sends 6 MiB a second.
type slowWriter struct{ http.ResponseWriter }

func (w slowWriter) Write(p []byte) (int, error) {
	const most = 64 << 10
	sent := 0
	for len(p) > 0 {
		n, err := w.ResponseWriter.Write(p[:min(len(p), most)])
		sent += n
		if err != nil {
			return sent, err
		}
		if err := http.NewResponseController(w.ResponseWriter).Flush(); err != nil {
			return sent, err
		}
		p = p[n:]
		time.Sleep(10 * time.Millisecond)
	}
	return sent, nil
}
