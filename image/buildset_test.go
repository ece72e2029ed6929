package image

import (
	"debug/elf"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestBuildSet(t *testing.T) {
	needsAMD64(t)
	expect := map[string]string{
		Containerd: "2.3.7", Runc: "1.4.3", CNIPlugins: "1.9.1", Kubeadm: "1.36.3", Kubelet: "1.36.3", Kubectl: "1.36.3",
	}
	own := BuildOptions{From: componentDir(t, elf.EM_X86_64, nil), Architecture: "amd64", Expect: expect}
	other := BuildOptions{From: componentDir(t, elf.EM_AARCH64, nil), Architecture: "arm64", Expect: expect}
	out := filepath.Join(t.TempDir(), "bundles")
	for range 2 { // the second replaces the first
		bundles, err := BuildSet(t.Context(), out, []BuildOptions{other, own}) // this machine's are built first
		if err != nil {
			t.Fatal(err)
		}
		for i, arch := range []string{"arm64", "amd64"} {
			b := bundles[i]
			if b.Dir != filepath.Join(out, arch) || b.Manifest.Architecture != arch || b.Version(Runc) != "v1.4.3" {
				t.Errorf("%s, %s: %+v", b.Dir, b.Manifest.Architecture, b.Manifest.Components)
			}
			if err := b.Verify(t.Context(), nil); err != nil {
				t.Error(err)
			}
		}
	}

	// One that fails leaves all as it was.
	before := snapshot(t, out)
	bad := other
	bad.From = componentDir(t, elf.EM_AARCH64, map[string]string{"bin/runc": ""})
	if _, err := BuildSet(t.Context(), out, []BuildOptions{own, bad}); err == nil || !strings.Contains(err.Error(), "arm64: runc: ") {
		t.Errorf("got %v", err)
	}
	own.Expect = map[string]string{Runc: "1.4.4"}
	if _, err := BuildSet(t.Context(), out, []BuildOptions{own, other}); err == nil ||
		!strings.Contains(err.Error(), "runc says that it is v1.4.3, but v1.4.4 was asked for") {
		t.Errorf("got %v", err)
	}
	if diff := cmp.Diff(before, snapshot(t, out)); diff != "" {
		t.Error(diff)
	}

	// One bundle may take the place of a set; something foreign among it may not go.
	write(t, filepath.Join(out, "arm64", "thesis.txt"), []byte("x"))
	own.Out, own.Expect = out, nil
	if _, err := Build(t.Context(), own); err == nil || !strings.Contains(err.Error(), "thesis.txt") {
		t.Errorf("got %v", err)
	}
	if err := os.Remove(filepath.Join(out, "arm64", "thesis.txt")); err != nil {
		t.Fatal(err)
	}
	if _, err := Build(t.Context(), own); err != nil {
		t.Error(err)
	}
	if _, err := Open(out); err != nil {
		t.Error(err)
	}
}

func TestBuildReplace(t *testing.T) {
	needsAMD64(t)
	from := componentDir(t, elf.EM_X86_64, map[string]string{"bin/kubelet": ""})
	put := func(name, answer string, machine elf.Machine) string {
		p := filepath.Join(t.TempDir(), name)
		write(t, p, program(t, machine, answer))
		if err := os.Chmod(p, 0o755); err != nil {
			t.Fatal(err)
		}
		return p
	}
	mine := put("mine", "Kubernetes v1.36.3\n", elf.EM_X86_64)
	expect := map[string]string{Runc: "1.4.3", Kubelet: "1.36.3"}
	tests := []struct {
		name    string
		replace map[string]string
		change  func(*BuildOptions)
		version string // of runc
		want    string // error; "": built
	}{
		{"kubelet", map[string]string{"kubelet": mine}, nil, "v1.4.3", ""},
		{"a plugin that was not there", map[string]string{"kubelet": mine, "vlan": put("v", "CNI vlan plugin v1.9.1\n", elf.EM_X86_64)}, nil, "v1.4.3", ""},
		{"another runc than expected", map[string]string{"kubelet": mine, "runc": put("r", "runc version 1.5.2\n", elf.EM_X86_64)}, nil, "v1.5.2", ""},
		{"too old a runc", map[string]string{"kubelet": mine, "runc": put("r", "runc version 1.3.6\n", elf.EM_X86_64)}, nil, "", "rule runc-for-containerd"},
		{"another kubelet", map[string]string{"kubelet": put("k", "Kubernetes v1.36.4\n", elf.EM_X86_64)}, nil, "", "kubelet is v1.36.4"},
		{"another ctr", map[string]string{"kubelet": mine, "ctr": put("c", "ctr x v2.3.6\n", elf.EM_X86_64)}, nil, "", "ctr is v2.3.6"},
		{"another machine's", map[string]string{"kubelet": put("k", "x", elf.EM_AARCH64)}, nil, "", "EM_AARCH64"},
		{"missing", map[string]string{"kubelet": "/nonexistent"}, nil, "", "/nonexistent is missing"},
		{"no such file of a bundle", map[string]string{"kubelet": mine, "etcd": mine}, nil, "", "etcd cannot be replaced"},
		{"foreign", map[string]string{"kubelet": put("k", "x", elf.EM_AARCH64)}, func(o *BuildOptions) {
			o.Architecture, o.From = "arm64", componentDir(t, elf.EM_AARCH64, nil)
			o.Expect = map[string]string{
				Containerd: "2.3.7", Runc: "1.4.3", CNIPlugins: "1.9.1", Kubeadm: "1.36.3", Kubelet: "1.36.3", Kubectl: "1.36.3",
			}
		}, "", "version of kubelet"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			o := BuildOptions{From: from, Out: filepath.Join(t.TempDir(), "b"), Replace: test.replace, Expect: expect}
			if test.change != nil {
				test.change(&o)
			}
			b, err := Build(t.Context(), o)
			if test.want != "" {
				if err == nil || !strings.Contains(err.Error(), test.want) {
					t.Errorf("got %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := b.Version(Runc); got != test.version {
				t.Errorf("runc is %s", got)
			}
			for name, path := range test.replace {
				i := 0
				for b.Manifest.Files[i].Name() != name {
					i++
				}
				if diff := cmp.Diff(read(t, filepath.Dir(path), filepath.Base(path)), read(t, b.Dir, b.Manifest.Files[i].Path)); diff != "" {
					t.Errorf("%s is not the given one", name)
				}
			}
		})
	}
}
