package image

import (
	"crypto/sha256"
	"encoding/hex"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// fixture writes a bundle of random files and returns its directory. size gives
// each file's size by path.
func fixture(t testing.TB, dir string, size func(path string) int64) string {
	t.Helper()
	m := Manifest{SchemaVersion: SchemaVersion, Architecture: runtime.GOARCH, KubernetesVersion: "v1.36.3"}
	for name, version := range map[string]string{
		Containerd: "v2.3.7", Runc: "v1.3.4", CNIPlugins: "v1.9.1", Kubeadm: "v1.36.3", Kubelet: "v1.36.3", Kubectl: "v1.36.3",
	} {
		m.Components = append(m.Components, Component{name, version})
	}
	places := []string{
		"containerd/usr/local/bin/containerd", "containerd/usr/local/bin/containerd-shim-runc-v2",
		"containerd/usr/local/bin/ctr", "runc/usr/local/sbin/runc", "kubeadm/usr/bin/kubeadm",
		"kubelet/usr/bin/kubelet", "kubectl/usr/bin/kubectl",
		"cni-plugins/opt/cni/bin/bridge", "cni-plugins/opt/cni/bin/loopback",
	}
	for i, p := range places {
		component, place, _ := strings.Cut(p, "/")
		f := File{Path: component + "/" + path.Base(place), Component: component, Place: "/" + place, Mode: 0o755}
		f.Size = size(f.Path)
		f.SHA256 = writeRandom(t, filepath.Join(dir, f.Path), f.Size, uint64(i))
		m.Files = append(m.Files, f)
	}
	writeManifest(t, dir, m)
	return dir
}

func writeManifest(t testing.TB, dir string, m Manifest) {
	t.Helper()
	slices.SortFunc(m.Files, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	slices.SortFunc(m.Components, func(a, b Component) int { return strings.Compare(a.Name, b.Name) })
	data, err := marshal(m, "  ")
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, ManifestName), data)
}

func writeRandom(t testing.TB, name string, size int64, seed uint64) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	random := rand.NewChaCha8([32]byte{byte(seed), 1})
	h := sha256.New()
	buf := make([]byte, 1<<20)
	for left := size; left > 0; left -= int64(len(buf)) {
		buf = buf[:min(left, int64(len(buf)))]
		_, _ = random.Read(buf) // never fails
		h.Write(buf)
		if _, err := f.Write(buf); err != nil {
			t.Fatal(err)
		}
	}
	return hex.EncodeToString(h.Sum(nil))
}

func write(t testing.TB, name string, data []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, data, 0o644); err != nil {
		t.Fatal(err)
	}
}

func small(string) int64 { return 300_000 }

func openFixture(t testing.TB) *Bundle {
	t.Helper()
	return mustOpen(t, fixture(t, t.TempDir(), small))
}

func mustOpen(t testing.TB, dir string) *Bundle {
	t.Helper()
	b, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func upgraderFixture(t testing.TB, content string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "running")
	write(t, name, []byte(content))
	return name
}
