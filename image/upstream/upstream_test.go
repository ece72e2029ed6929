package upstream

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/node-upgrader/node-upgrader/image"
	"github.com/node-upgrader/node-upgrader/image/download"
	"github.com/node-upgrader/node-upgrader/image/imagetest"
)

func release() imagetest.Release {
	return imagetest.Release{Kubernetes: "v1.36.3", Containerd: "v2.3.7", Runc: "v1.4.3", CNIPlugins: "v1.9.1"}
}

func asked(r imagetest.Release) map[string]string {
	return map[string]string{
		image.Kubeadm: r.Kubernetes, image.Kubelet: r.Kubernetes, image.Kubectl: r.Kubernetes,
		image.Containerd: r.Containerd, image.Runc: strings.TrimPrefix(r.Runc, "v"), image.CNIPlugins: r.CNIPlugins,
	}
}

func options(t *testing.T, m *mirror) Options {
	t.Helper()
	if runtime.GOARCH != "amd64" {
		t.Skip("the test's programs run on amd64")
	}
	dir := t.TempDir()
	return Options{
		Versions: asked(release()), Architectures: []string{"amd64"}, Lock: filepath.Join(dir, "bundle.lock"), Update: true,
		Mirror: m.URL + "/mirror", Download: download.Options{Cache: filepath.Join(dir, "cache"), Attempts: 1},
		Out: filepath.Join(dir, "bundle"), Log: slog.New(slog.DiscardHandler),
	}
}

func build(t *testing.T, o Options) []*image.Bundle {
	t.Helper()
	bundles, err := Build(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range bundles {
		if err := b.Verify(t.Context(), nil); err != nil {
			t.Error(err)
		}
	}
	return bundles
}

func TestBuild(t *testing.T) {
	m := newMirror(t, release())
	o := options(t, m)
	first := build(t, o)[0]
	if got := len(first.Manifest.Files); got != 11 || first.Version(image.Containerd) != "v2.3.7" || first.Version(image.Runc) != "v1.4.3" {
		t.Errorf("%d files, %+v", got, first.Manifest.Components)
	}
	if got := m.requests(); len(got) != 12 { // each artifact and its checksum
		t.Errorf("asked for %q", got)
	}
	text, err := os.ReadFile(o.Lock)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), m.URL) || strings.Count(string(text), "https://dl.k8s.io/release/v1.36.3/") != 3 {
		t.Errorf("lock:\n%s", text)
	}

	// By the lock alone: nothing is asked but what the cache does not have, and
	// never a checksum.
	o.Update, o.Versions = false, nil
	if again := build(t, o)[0]; again.Digest != first.Digest {
		t.Error("another digest")
	}
	if got := m.requests(); len(got) != 0 {
		t.Errorf("asked for %q", got)
	}
	o.Download.Cache = filepath.Join(t.TempDir(), "cache")
	if again := build(t, o)[0]; again.Digest != first.Digest {
		t.Error("another digest")
	}
	if got := m.requests(); len(got) != 6 || slices.ContainsFunc(got, func(s string) bool { return strings.Contains(s, "sha256") }) {
		t.Errorf("asked for %q", got)
	}
	if left, err := os.ReadDir(filepath.Dir(o.Out)); err != nil || len(left) != 3 { // lock, cache, bundle
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestBuildArchitectures(t *testing.T) {
	m := newMirror(t, release())
	o := options(t, m)
	o.Architectures = []string{"amd64", "arm64"}
	both := build(t, o)
	for i, arch := range o.Architectures {
		if both[i].Manifest.Architecture != arch || both[i].Version(image.CNIPlugins) != "v1.9.1" || both[i].Dir != filepath.Join(o.Out, arch) {
			t.Errorf("%s: %+v", arch, both[i])
		}
	}
	// An update for one keeps the other in the lock.
	o.Architectures = []string{"amd64"}
	build(t, o)
	o.Update, o.Architectures = false, []string{"arm64"}
	if b := build(t, o)[0]; b.Digest != both[1].Digest {
		t.Error("another digest")
	}
}

func TestBuildReplace(t *testing.T) {
	o := options(t, newMirror(t, release()))
	mine := filepath.Join(t.TempDir(), "runc")
	if err := os.WriteFile(mine, imagetest.Program(62, "runc version 1.5.2\n"), 0o755); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	o.Bundle.Replace = map[string]string{"runc": mine}
	if b := build(t, o)[0]; b.Version(image.Runc) != "v1.5.2" {
		t.Errorf("runc %s", b.Version(image.Runc))
	}
	// The lock's own would be too old.
	old := release()
	old.Runc = "v1.4.1"
	o = options(t, newMirror(t, old))
	o.Versions = asked(old)
	if _, err := Build(t.Context(), o); err == nil || !strings.Contains(err.Error(), "rule runc-for-containerd") {
		t.Errorf("got %v", err)
	}
	o.Bundle.Replace = map[string]string{"runc": mine}
	if b := build(t, o)[0]; b.Version(image.Runc) != "v1.5.2" {
		t.Errorf("runc %s", b.Version(image.Runc))
	}
}

func TestBuildRefuses(t *testing.T) {
	const (
		kubelet = "dl.k8s.io/release/v1.36.3/bin/linux/amd64/kubelet"
		runc    = "github.com/opencontainers/runc/releases/download/v1.4.3/"
		cni     = "github.com/containernetworking/plugins/releases/download/v1.9.1/cni-plugins-linux-amd64-v1.9.1.tgz"
	)
	newer := release()
	newer.Kubernetes = "v1.36.4"
	locked := func(t *testing.T, o *Options, _ *mirror) {
		build(t, *o)
		o.Update = false
		o.Download.Cache += "2"
	}
	tests := []struct {
		name   string
		change func(t *testing.T, o *Options, m *mirror)
		want   []string
	}{
		{"no lock", func(_ *testing.T, o *Options, _ *mirror) { o.Update = false }, []string{"bundle.lock: is missing"}},
		{"no version", func(_ *testing.T, o *Options, _ *mirror) { delete(o.Versions, image.Runc) }, []string{"no version of runc"}},
		{"lock of another version", func(t *testing.T, o *Options, m *mirror) {
			locked(t, o, m)
			o.Versions = asked(newer)
		}, []string{"has kubeadm v1.36.3 for amd64, but v1.36.4 is asked for", "has kubelet v1.36.3", "has kubectl"}},
		{"lock of another architecture", func(t *testing.T, o *Options, m *mirror) {
			locked(t, o, m)
			o.Architectures = []string{"arm64"}
		}, []string{"does not have runc for arm64", "does not have kubelet for arm64"}},
		{"too old a containerd", func(_ *testing.T, o *Options, _ *mirror) { o.Versions[image.Containerd] = "1.6.39" }, []string{"rule containerd-for-kubernetes"}},
		{"no release", func(_ *testing.T, o *Options, _ *mirror) { o.Versions[image.Runc] = "v1.9.9/../../x" }, []string{"not one of a release"}},
		{"not there", func(_ *testing.T, o *Options, _ *mirror) { o.Versions[image.Runc] = "v1.9.9" }, []string{"checksum of runc", "/v1.9.9/runc.sha256sum", "404"}},
		{"checksum an HTML page", func(_ *testing.T, _ *Options, m *mirror) { m.put(kubelet+".sha256", []byte("<html>")) }, []string{"checksum of kubelet", "HTML page"}},
		{"checksum nonsense", func(_ *testing.T, _ *Options, m *mirror) { m.put(kubelet+".sha256", []byte("abc")) }, []string{"has no sha256 for kubelet"}},
		{"checksum of others", func(_ *testing.T, _ *Options, m *mirror) {
			m.put(runc+"runc.sha256sum", []byte(strings.Repeat("a", 64)+"  runc.s390x\n"))
		}, []string{"has no sha256 for runc.amd64"}},
		{"checksum wrong", func(_ *testing.T, _ *Options, m *mirror) { m.put(kubelet+".sha256", []byte(strings.Repeat("a", 64))) }, []string{"kubelet v1.36.3 for amd64", "instead of aaa"}},
		{"artifact altered", func(t *testing.T, o *Options, m *mirror) {
			locked(t, o, m)
			m.put(kubelet, imagetest.Program(62, "Kubernetes v1.36.3 evil\n"))
		}, []string{"kubelet v1.36.3 for amd64", "instead of"}},
		{"released again", func(t *testing.T, o *Options, m *mirror) {
			build(t, *o)
			m.put(kubelet+".sha256", []byte(strings.Repeat("b", 64)))
		}, []string{"a release does not change", "kubelet v1.36.3 for amd64"}},
		{"kubelet of another version", func(_ *testing.T, _ *Options, m *mirror) {
			files := newer.Files()
			m.put(kubelet, files["dl.k8s.io/release/v1.36.4/bin/linux/amd64/kubelet"])
			m.put(kubelet+".sha256", files["dl.k8s.io/release/v1.36.4/bin/linux/amd64/kubelet.sha256"])
		}, []string{"kubelet says that it is v1.36.4, but v1.36.3 was asked for"}},
		{"runc of another version", func(_ *testing.T, _ *Options, m *mirror) {
			other := release()
			other.Runc = "v1.4.4"
			files := other.Files()
			m.put(runc+"runc.amd64", files["github.com/opencontainers/runc/releases/download/v1.4.4/runc.amd64"])
			m.put(runc+"runc.sha256sum", files["github.com/opencontainers/runc/releases/download/v1.4.4/runc.sha256sum"])
		}, []string{"runc says that it is v1.4.4, but v1.4.3 was asked for"}},
		{"another machine's", func(_ *testing.T, _ *Options, m *mirror) {
			other := strings.Replace(kubelet, "amd64", "arm64", 1)
			m.put(kubelet, m.files[other])
			m.put(kubelet+".sha256", m.files[other+".sha256"])
		}, []string{"binary is for EM_AARCH64"}},
		{"no archive", func(_ *testing.T, _ *Options, m *mirror) {
			m.put(cni, m.files[kubelet])
			m.put(cni+".sha256", m.files[kubelet+".sha256"])
		}, []string{"cni-plugins v1.9.1 for amd64: unpack: not a .tar.gz"}},
		{"mirror with a question", func(_ *testing.T, o *Options, _ *mirror) { o.Mirror += "?x=y" }, []string{"no '?'"}},
		{"mirror of another kind", func(_ *testing.T, o *Options, _ *mirror) { o.Mirror = "ftp://x/y" }, []string{"ftp"}},
		{"lock made over http", func(_ *testing.T, o *Options, _ *mirror) { o.Mirror = "http://192.0.2.1/" }, []string{"a lock is not made over http"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			m := newMirror(t, release(), newer)
			o := options(t, m)
			o.Mirror = strings.Replace(o.Mirror, "://", "://me:secret@", 1)
			test.change(t, &o, m)
			before := tree(t, filepath.Dir(o.Out))
			_, err := Build(t.Context(), o)
			if err == nil {
				t.Fatal("built")
			}
			if strings.Contains(err.Error(), "secret") {
				t.Errorf("shows the mirror's password: %v", err)
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("got %v, want %q", err, want)
				}
			}
			var lock *LockError
			if errors.As(err, &lock) && lock.Advice() == "" {
				t.Error("no advice")
			}
			after := tree(t, filepath.Dir(o.Out))
			// Artifacts that were right were pinned, even where they do not make a bundle.
			if pinned := []string{"kubelet of another version", "runc of another version", "another machine's", "no archive"}; slices.Contains(pinned, test.name) {
				delete(after, "bundle.lock")
			}
			if diff := cmp.Diff(before, after); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// tree is what lies in a directory, caches aside, with its contents.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(name string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && strings.HasPrefix(d.Name(), "cache") {
			return filepath.SkipDir
		}
		rel, _ := filepath.Rel(dir, name)
		if rel != "." {
			all[rel] = ""
		}
		if d.Type().IsRegular() {
			b, err := os.ReadFile(name)
			all[rel] = string(b)
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}
