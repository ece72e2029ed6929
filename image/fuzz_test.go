package image

import (
	"bytes"
	"errors"
	"path/filepath"
	"strings"
	"testing"
)

// FuzzManifest holds decode to its word: what it takes is safe to join to a
// directory, and written again is the same manifest.
func FuzzManifest(f *testing.F) {
	dir := fixture(f, f.TempDir(), func(string) int64 { return 10 })
	good, err := readManifest(dir)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	for _, s := range []string{"", "{}", "[]", "null", `{"schemaVersion":1}`, `{"schemaVersion":1,"files":[{"path":"../x"}]}`} {
		f.Add([]byte(s))
	}
	for _, swap := range [][2]string{{"kubelet/kubelet", "../kubelet"}, {`"0755"`, `"4755"`}, {`"files"`, `"Files"`}, {"v1.36.3", "v1"}} {
		f.Add([]byte(strings.ReplaceAll(string(good), swap[0], swap[1])))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := decode(data)
		if err != nil {
			var bad *BadBundleError
			if !errors.As(err, &bad) {
				t.Fatalf("%T is not a BadBundleError", err)
			}
			return
		}
		seen := map[string]bool{}
		for _, file := range m.Files {
			if !filepath.IsLocal(file.Path) || !filepath.IsAbs(file.Place) || seen[file.Path] || file.Mode&^0o755 != 0 {
				t.Fatalf("accepted %+v", file)
			}
			seen[file.Path] = true
		}
		again, err := marshal(m, "  ")
		if err != nil {
			t.Fatal(err)
		}
		back, err := decode(again)
		if err != nil {
			t.Fatal(err)
		}
		if twice, err := marshal(back, "  "); err != nil || !bytes.Equal(twice, again) {
			t.Fatal("not the same when written again")
		}
	})
}
