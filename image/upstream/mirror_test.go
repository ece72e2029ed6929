package upstream

import (
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/node-upgrader/node-upgrader/image/imagetest"
)

// mirror serves releases below /mirror.
type mirror struct {
	*httptest.Server
	mu    sync.Mutex
	files map[string][]byte
	asked []string
}

func newMirror(t *testing.T, releases ...imagetest.Release) *mirror {
	t.Helper()
	m := &mirror{files: map[string][]byte{}}
	for _, r := range releases {
		maps.Copy(m.files, r.Files())
	}
	m.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		m.mu.Lock()
		defer m.mu.Unlock()
		name := strings.TrimPrefix(r.URL.Path, "/mirror/")
		m.asked = append(m.asked, name)
		data, ok := m.files[name]
		if !ok {
			http.NotFound(w, r)
			return
		}
		http.ServeContent(w, r, "", time.Time{}, strings.NewReader(string(data)))
	}))
	t.Cleanup(m.Close)
	return m
}

// requests returns what was asked since the last call, sorted.
func (m *mirror) requests() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	asked := slices.Sorted(slices.Values(m.asked))
	m.asked = nil
	return asked
}

// put changes what is served.
func (m *mirror) put(name string, data []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.files[name] = data
}
