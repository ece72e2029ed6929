package upstream

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/node-upgrader/node-upgrader/image"
	"github.com/node-upgrader/node-upgrader/image/strictjson"
)

// fullLock pins everything for two architectures, in no order.
func fullLock(t testing.TB) Lock {
	t.Helper()
	l := Lock{SchemaVersion: SchemaVersion}
	for _, arch := range []string{"arm64", "amd64"} {
		for component, version := range asked(release()) {
			a, err := newArtifact(component, "v"+strings.TrimPrefix(version, "v"), arch)
			if err != nil {
				t.Fatal(err)
			}
			l.Artifacts = append(l.Artifacts, Pin{component, a.Version, arch, a.URL, strings.Repeat("0123456789abcdef", 4)})
		}
	}
	return l
}

func TestLock(t *testing.T) {
	name := filepath.Join(t.TempDir(), "bundle.lock")
	if _, err := ReadLock(name); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	l := fullLock(t)
	if err := l.Write(name); err != nil {
		t.Fatal(err)
	}
	first, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	back, err := ReadLock(name)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(l, back); diff != "" { // Write has sorted it
		t.Error(diff)
	}
	slices.Reverse(back.Artifacts)
	link := filepath.Join(t.TempDir(), "link")
	if err := errors.Join(os.Symlink(name, link), back.Write(link)); err != nil {
		t.Fatal(err)
	}
	if second, err := os.ReadFile(name); err != nil || !bytes.Equal(first, second) {
		t.Error("written in another order, or not through the link")
	}
	if entries, err := os.ReadDir(filepath.Dir(name)); err != nil || len(entries) != 1 {
		t.Errorf("left: %v, %v", entries, err)
	}
}

func TestBadLocks(t *testing.T) {
	tests := map[string]struct {
		change func(l *Lock)
		old    string // replaced in the text
		text   string
		want   string
	}{
		"empty":              {nil, "*", "", "not valid JSON"},
		"a page":             {nil, "*", "<html>", "not valid JSON"},
		"newer":              {nil, `"schemaVersion": 1`, `"schemaVersion": 2`, "schema version 2"},
		"unknown key":        {nil, `"artifacts"`, `"more": 1, "artifacts"`, "unknown field"},
		"other key":          {nil, `"artifacts"`, `"Artifacts"`, "unusually spelled"},
		"more behind":        {nil, "\n}\n", "\n}{}", "not valid JSON"},
		"huge":               {nil, "\n}\n", "\n}" + strings.Repeat(" ", maxLock), "is larger than 1 MiB"},
		"unknown component":  {func(l *Lock) { l.Artifacts[0].Component = "etcd" }, "", "", `"etcd" is not a component`},
		"version no release": {func(l *Lock) { l.Artifacts[0].Version = "v1" }, "", "", "not one of a release"},
		"architecture":       {func(l *Lock) { l.Artifacts[0].Architecture = "vax" }, "", "", `"vax" is not known`},
		"other address":      {func(l *Lock) { l.Artifacts[0].URL = "https://evil.example/x" }, "", "", "evil.example"},
		"sha256 in capitals": {func(l *Lock) { l.Artifacts[0].SHA256 = strings.Repeat("A", 64) }, "", "", "no valid sha256"},
		"twice":              {func(l *Lock) { l.Artifacts[1] = l.Artifacts[0] }, "", "", "twice or out of order"},
		"out of order":       {func(l *Lock) { slices.Reverse(l.Artifacts) }, "", "", "twice or out of order"},
		"two versions": {func(l *Lock) {
			a, _ := newArtifact(image.CNIPlugins, "v1.9.0", "arm64")
			l.Artifacts[1].Version, l.Artifacts[1].URL = a.Version, a.URL
		}, "", "", "two versions of cni-plugins"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			l := fullLock(t)
			slices.SortFunc(l.Artifacts, comparePins)
			if test.change != nil {
				test.change(&l)
			}
			data, err := strictjson.Marshal(l, "  ")
			if err != nil {
				t.Fatal(err)
			}
			text := strings.Replace(string(data), test.old, test.text, 1)
			if test.old == "*" {
				text = test.text
			}
			file := filepath.Join(t.TempDir(), "bundle.lock")
			if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			_, err = ReadLock(file)
			var bad *LockError
			if !errors.As(err, &bad) || !strings.Contains(err.Error(), test.want) || !strings.HasPrefix(err.Error(), file) {
				t.Errorf("got %v", err)
			}
			if test.change != nil && name != "out of order" && l.Write(file) == nil {
				t.Error("written")
			}
		})
	}
}

func TestFindChecksum(t *testing.T) {
	a, b := strings.Repeat("a", 64), strings.Repeat("b", 64)
	tests := map[string]struct{ text, want string }{
		"alone":            {a, a},
		"alone, a line":    {a + "\n", a},
		"capitals":         {strings.ToUpper(a) + "\r\n", a},
		"named":            {a + "  runc.amd64\n", a},
		"binary":           {a + " *runc.amd64\n", a},
		"in a directory":   {a + "  ./out/runc.amd64\n", a},
		"among others":     {b + "  runc.arm64\n" + a + "  runc.amd64\n" + b + "  runc.tar.xz\n", a},
		"signed":           {"-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA512\n\n" + a + "  runc.amd64\n-----BEGIN PGP SIGNATURE-----\n", a},
		"twice the same":   {a + "  runc.amd64\n" + a + "  runc.amd64\n", a},
		"twice, different": {a + "  runc.amd64\n" + b + "  runc.amd64\n", ""},
		"of others":        {b + "  runc.arm64\n", ""},
		"longer name":      {b + "  xrunc.amd64\n", ""},
		"short":            {a[1:] + "  runc.amd64\n", ""},
		"empty":            {"", ""},
		"a page":           {"<html>" + a + "  runc.amd64</html>", ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := findChecksum(test.text, "runc.amd64")
			if got != test.want || (err == nil) != (test.want != "") {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
}

// FuzzLock: a lock that is taken says nothing but the projects' own addresses,
// and is the same when it is written again.
func FuzzLock(f *testing.F) {
	l := fullLock(f)
	slices.SortFunc(l.Artifacts, comparePins)
	good, err := strictjson.Marshal(l, "  ")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	for _, s := range []string{"", "{}", "null", `{"schemaVersion":1,"artifacts":null}`, `{"schemaVersion":1,"artifacts":[]}`} {
		f.Add([]byte(s))
	}
	f.Add(bytes.ReplaceAll(good, []byte("dl.k8s.io"), []byte("evil.example")))
	f.Fuzz(func(t *testing.T, data []byte) {
		l, err := decodeLock(data)
		if err != nil {
			return
		}
		for _, p := range l.Artifacts {
			if !strings.HasPrefix(p.URL, "https://dl.k8s.io/release/v") && !strings.HasPrefix(p.URL, "https://github.com/") ||
				strings.Contains(p.URL, "..") || !sha256Syntax.MatchString(p.SHA256) {
				t.Fatalf("accepted %+v", p)
			}
		}
		again, err := strictjson.Marshal(l, "  ")
		if err != nil {
			t.Fatal(err)
		}
		back, err := decodeLock(again)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(l, back); diff != "" {
			t.Fatal(diff)
		}
	})
}
