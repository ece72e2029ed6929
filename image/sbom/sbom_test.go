package sbom

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx"
	"github.com/spdx/tools-golang/spdx/v2/common"
	"github.com/spdx/tools-golang/spdxlib"

	"github.com/node-upgrader/node-upgrader/image"
)

// program makes a Go program with a module in it; a test's own file has no word
// of its modules.
func program(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	source := "package main\n\nimport \"golang.org/x/mod/semver\"\n\nfunc main() { print(semver.Canonical(\"v1\")) }\n"
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(source), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", filepath.Join(dir, "program"), filepath.Join(dir, "main.go"))
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return filepath.Join(dir, "program")
}

// bundle is one whose kubelet is a Go program, and whose runc is none.
func bundle(t *testing.T, dir string) *image.Bundle {
	t.Helper()
	self, err := os.ReadFile(program(t))
	if err != nil {
		t.Fatal(err)
	}
	var files []string
	for name, data := range map[string][]byte{"kubelet": self, "runc": []byte("#!/bin/sh\n")} {
		path := filepath.Join(dir, name, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, data, 0o755)); err != nil {
			t.Fatal(err)
		}
		files = append(files, fmt.Sprintf(`{"path":"%[1]s/%[1]s","component":"%[1]s","place":"/usr/bin/%[1]s","sha256":"%x","size":%d,"mode":"0755"}`,
			name, sha256.Sum256(data), len(data)))
	}
	slices.Sort(files)
	manifest := fmt.Sprintf(`{"schemaVersion":1,"architecture":%q,"kubernetesVersion":"v1.36.3",
		"components":[{"name":"kubelet","version":"v1.36.3"},{"name":"runc","version":"v1.4.3"}],"files":[%s]}`,
		runtime.GOARCH, strings.Join(files, ","))
	if err := os.WriteFile(filepath.Join(dir, image.ManifestName), []byte(manifest), 0o644); err != nil {
		t.Fatal(err)
	}
	b, err := image.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func make2(t *testing.T, o Options) ([]byte, *spdx.Document) {
	t.Helper()
	data, err := Make(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := json.Read(bytes.NewReader(data))
	if err == nil {
		err = spdxlib.ValidateDocument(doc)
	}
	if err != nil {
		t.Fatal(err)
	}
	return data, doc
}

func TestEveryFileIsNamed(t *testing.T) {
	b := bundle(t, t.TempDir())
	data, _ := make2(t, Options{Bundle: b, Upgrader: program(t)})
	got, err := Files(data)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"./bundle/bundle.json": strings.TrimPrefix(b.Digest, "sha256:")}
	for _, f := range b.Manifest.Files {
		want["./bundle/"+f.Path] = f.SHA256
		if f.Component == image.Kubelet {
			want["./upgrader"] = f.SHA256 // the same program
		}
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if err := Difference(data, want); err != nil {
		t.Error(err)
	}
	want["./bundle/surplus"] = "0"
	want["./upgrader"] = "1"
	delete(want, "./bundle/runc/runc")
	err = Difference(data, want)
	for _, name := range []string{"./bundle/surplus is not in", "./upgrader has another", "./bundle/runc/runc is in the SBOM only"} {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("got %v, want %q", err, name)
		}
	}
}

func TestEveryModuleIsNamed(t *testing.T) {
	info, err := buildinfo.ReadFile(program(t))
	if err != nil || len(info.Deps) == 0 {
		t.Fatalf("%+v, %v", info, err)
	}
	_, doc := make2(t, Options{Bundle: bundle(t, t.TempDir())})
	modules := map[string]*spdx.Package{}
	for _, p := range doc.Packages {
		if strings.HasPrefix(string(p.PackageSPDXIdentifier), "Go-") {
			modules[p.PackageName+"@"+p.PackageVersion] = p
		}
	}
	want := []string{"stdlib@" + strings.Fields(strings.TrimPrefix(info.GoVersion, "go"))[0], cmp.Or(info.Main.Path, info.Path) + "@v1.36.3"}
	for _, d := range info.Deps {
		want = append(want, d.Path+"@"+d.Version)
	}
	for _, name := range want {
		p := modules[name]
		if p == nil {
			t.Errorf("%s is missing", name)
			continue
		}
		path, version, _ := strings.Cut(name, "@")
		purl := "pkg:golang/" + strings.ToLower(path) + "@" + strings.ReplaceAll(version, "+", "%2B")
		if len(p.PackageExternalReferences) != 1 || p.PackageExternalReferences[0].Locator != purl {
			t.Errorf("%s: %+v, want %s", name, p.PackageExternalReferences, purl)
		}
	}
	if len(modules) != len(want) {
		t.Errorf("%d modules, want %d", len(modules), len(want))
	}
}

// Everything hangs together: from the document one comes to each thing, and each
// file and module is said to be in something.
func TestRelationships(t *testing.T) {
	_, doc := make2(t, Options{Bundle: bundle(t, t.TempDir()), Upgrader: program(t)})
	next := map[common.ElementID][]common.ElementID{}
	for _, r := range doc.Relationships {
		next[r.RefA.ElementRefID] = append(next[r.RefA.ElementRefID], r.RefB.ElementRefID)
	}
	seen := map[common.ElementID]bool{}
	var walk func(common.ElementID)
	walk = func(id common.ElementID) {
		if !seen[id] {
			seen[id] = true
			for _, n := range next[id] {
				walk(n)
			}
		}
	}
	walk("DOCUMENT")
	all := 1
	for _, p := range doc.Packages {
		all++
		if !seen[p.PackageSPDXIdentifier] {
			t.Errorf("%s is not reached", p.PackageName)
		}
	}
	for _, f := range doc.Files {
		all++
		if !seen[f.FileSPDXIdentifier] {
			t.Errorf("%s is not reached", f.FileName)
		}
	}
	if len(seen) != all {
		t.Errorf("%d are reached, %d are there: an id is used twice", len(seen), all)
	}
}

func TestReproducible(t *testing.T) {
	first, _ := make2(t, Options{Bundle: bundle(t, t.TempDir())})
	again, _ := make2(t, Options{Bundle: bundle(t, filepath.Join(t.TempDir(), "elsewhere"))})
	if !bytes.Equal(first, again) {
		t.Error(gocmp.Diff(string(first), string(again)))
	}
	_, dated := make2(t, Options{Bundle: bundle(t, t.TempDir()), Created: time.Unix(1_700_000_000, 0)})
	if dated.CreationInfo.Created != "2023-11-14T22:13:20Z" {
		t.Error(dated.CreationInfo.Created)
	}
}

func TestAlteredFile(t *testing.T) {
	b := bundle(t, t.TempDir())
	if err := os.WriteFile(filepath.Join(b.Dir, "runc/runc"), []byte("#!/bin/bash"[:10]), 0o755); err != nil {
		t.Fatal(err)
	}
	var bad *image.BadBundleError
	if _, err := Make(t.Context(), Options{Bundle: b}); !errors.As(err, &bad) || bad.File != "runc/runc" {
		t.Errorf("got %v", err)
	}
}

func TestModules(t *testing.T) {
	build := &buildinfo.BuildInfo{
		GoVersion: "go1.26.8 X:rangefunc", Main: debug.Module{Path: "example.org/p", Version: "(devel)"},
		Deps: []*debug.Module{
			{Path: "example.org/a", Version: "v1.0.0+incompatible", Sum: "h1:a"},
			{Path: "example.org/b", Version: "v0.0.0", Replace: &debug.Module{Path: "example.org/Fork", Version: "v1.2.3", Sum: "h1:b"}},
			{Path: "example.org/c", Version: "v0.0.0", Replace: &debug.Module{Path: "./staging/c"}},
		},
	}
	got := modulesOf(content{build: build, version: "v9.9.9"})
	want := []module{
		{path: "example.org/p", version: "v9.9.9", comment: "the program's own module"},
		{path: "stdlib", version: "1.26.8"},
		{path: "example.org/a", version: "v1.0.0+incompatible", sum: "h1:a"},
		{path: "example.org/Fork", version: "v1.2.3", sum: "h1:b", comment: "in place of example.org/b v0.0.0"},
		{path: "example.org/c", version: "v0.0.0", comment: "replaced by the directory ./staging/c of the build"},
	}
	if diff := gocmp.Diff(want, got, gocmp.AllowUnexported(module{})); diff != "" {
		t.Error(diff)
	}
	if got := purlOfModule("example.org/Fork", "v1.0.0+incompatible"); got != "pkg:golang/example.org/fork@v1.0.0%2Bincompatible" {
		t.Error(got)
	}
	sum := "sha256:" + hex.EncodeToString(make([]byte, 32))
	if got := purlOfImage("registry.k8s.io/coredns/coredns:v1.12.1", sum); got != "pkg:oci/coredns@"+strings.Replace(sum, ":", "%3A", 1)+"?repository_url=registry.k8s.io%2Fcoredns%2Fcoredns&tag=v1.12.1" {
		t.Error(got)
	}
}
