package oci

import (
	"os"
	"path/filepath"
	"testing"
)

func TestParsePlace(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, dir := range []string{"there", "registry.example/there"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join("there", "file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	const digest = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	for in, want := range map[string]string{
		"upgrader.tar":                         "upgrader.tar",
		"/media/stick/upgrader":                "/media/stick/upgrader",
		"./upgrader":                           "./upgrader",
		"./upgrader/":                          "oci:./upgrader/",
		"there":                                "oci:there",
		"there/file":                           "there/file",
		"oci:new":                              "oci:new",
		"oci-archive:new":                      "new",
		"registry.example/there":               "oci:registry.example/there",
		"docker://registry.example/there":      "registry.example/there",
		"registry.example/a/b:v1":              "registry.example/a/b:v1",
		"registry.example:5000/a":              "registry.example:5000/a",
		"localhost/a":                          "localhost/a",
		"[::1]:5000/a:v1":                      "[::1]:5000/a:v1",
		"registry.example/a@" + digest:         "registry.example/a@" + digest,
		"registry.example/a:v1.36.3@" + digest: "registry.example/a:v1.36.3@" + digest,
		"upgrader:v1":                          "",
		"library/upgrader":                     "",
		"registry.example/A:v1":                "",
		"registry.example/a:v1/":               "oci:registry.example/a:v1/",
		"registry.example/a:?":                 "",
		"registry.example/a@sha256:1234":       "",
		"registry.example/a@":                  "",
		"docker://upgrader":                    "",
		"oci:":                                 "",
	} {
		p, err := ParsePlace(in)
		if want == "" {
			if err == nil {
				t.Errorf("%q was taken for %s", in, p)
			}
			continue
		}
		if err != nil || p.String() != want {
			t.Errorf("%q: got %s, %v, want %s", in, p, err, want)
		}
	}
}
