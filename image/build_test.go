package image

import (
	"context"
	"debug/elf"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// componentDir writes programs that answer like the real ones. answers change
// an answer by file name; "" leaves the file out.
func componentDir(t *testing.T, machine elf.Machine, answers map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	all := map[string]string{
		"bin/containerd":              "containerd github.com/containerd/containerd/v2 v2.3.7 \n",
		"bin/containerd-shim-runc-v2": "containerd-shim-runc-v2:\n  Version:  v2.3.7\n  Revision: \n",
		"bin/ctr":                     "ctr github.com/containerd/containerd/v2 v2.3.7\n",
		"bin/runc":                    "runc version 1.4.3\nspec: 1.0.2\n",
		"bin/kubeadm":                 "v1.36.3\n",
		"bin/kubelet":                 "Kubernetes v1.36.3\n",
		"bin/kubectl":                 "Client Version: v1.36.3\nKustomize Version: v5.8.1\n",
		"bin/kube-apiserver":          "not taken",
		"cni/bridge":                  "CNI bridge plugin v1.9.1\nCNI protocol versions supported: 1.1.0\n",
		"cni/loopback":                "CNI loopback plugin v1.9.1\n",
	}
	for name, answer := range answers {
		all[name] = answer
	}
	for name, answer := range all {
		if answer == "" {
			continue
		}
		path := filepath.Join(dir, name)
		write(t, path, program(t, machine, answer))
		if err := os.Chmod(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(dir, "cni", "LICENSE"), []byte("x"))
	write(t, filepath.Join(dir, "cni", "README.md"), []byte("x"))
	return dir
}

func TestBuild(t *testing.T) {
	needsAMD64(t)
	from := componentDir(t, elf.EM_X86_64, nil)
	out := filepath.Join(t.TempDir(), "new", "bundle")
	var last, total int64
	b, err := Build(context.Background(), BuildOptions{From: from, Out: out, Progress: func(d, n int64) { last, total = d, n }})
	if err != nil {
		t.Fatal(err)
	}
	if err := mustOpen(t, out).Verify(context.Background(), nil); err != nil {
		t.Fatal(err)
	}
	if want := b.Manifest.size(); last != want || total != want {
		t.Errorf("progress ended at %d of %d, want %d", last, total, want)
	}
	if diff := cmp.Diff([]Component{
		{"cni-plugins", "v1.9.1"},
		{"containerd", "v2.3.7"},
		{"kubeadm", "v1.36.3"},
		{"kubectl", "v1.36.3"},
		{"kubelet", "v1.36.3"},
		{"runc", "v1.4.3"},
	}, b.Manifest.Components); diff != "" {
		t.Error(diff)
	}
	places := map[string]string{}
	for _, f := range b.Manifest.Files {
		places[f.Path] = f.Place
		if f.Mode != 0o755 || mode(t, filepath.Join(out, f.Path)) != 0o755 {
			t.Errorf("%s: mode %v", f.Path, f.Mode)
		}
	}
	if diff := cmp.Diff(map[string]string{
		"cni-plugins/bridge": "/opt/cni/bin/bridge", "cni-plugins/loopback": "/opt/cni/bin/loopback",
		"containerd/containerd":              "/usr/local/bin/containerd",
		"containerd/containerd-shim-runc-v2": "/usr/local/bin/containerd-shim-runc-v2",
		"containerd/ctr":                     "/usr/local/bin/ctr", "runc/runc": "/usr/local/sbin/runc",
		"kubeadm/kubeadm": "/usr/bin/kubeadm", "kubectl/kubectl": "/usr/bin/kubectl", "kubelet/kubelet": "/usr/bin/kubelet",
	}, places); diff != "" {
		t.Error(diff)
	}

	// Again, from a copy made of links, over what is there: the same digest.
	linked := t.TempDir()
	for _, sub := range []string{"bin", "cni"} {
		if err := os.Symlink(filepath.Join(from, sub), filepath.Join(linked, sub)); err != nil {
			t.Fatal(err)
		}
	}
	again, err := Build(context.Background(), BuildOptions{From: linked, Out: out, KubernetesVersion: "1.36.3", Architecture: "amd64"})
	if err != nil {
		t.Fatal(err)
	}
	if again.Digest != b.Digest {
		t.Errorf("digests differ: %s, %s", b.Digest, again.Digest)
	}
	if got := names(t, filepath.Dir(out)); len(got) != 1 {
		t.Errorf("left beside the bundle: %v", got)
	}
}

func TestBuildForeign(t *testing.T) {
	if runtime.GOARCH == "arm64" {
		t.Skip("arm64 is not foreign here")
	}
	from := componentDir(t, elf.EM_AARCH64, nil)
	o := BuildOptions{From: from, Out: filepath.Join(t.TempDir(), "b"), Architecture: "arm64"}
	if _, err := Build(context.Background(), o); err == nil || !strings.Contains(err.Error(), "give the version") {
		t.Errorf("without versions: got %v", err)
	}
	o.Versions = map[string]string{
		Containerd: "2.3.7", Runc: "1.4.3", CNIPlugins: "v1.9.1", Kubeadm: "1.36.3", Kubelet: "1.36.3", Kubectl: "1.36.3",
	}
	b, err := Build(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Verify(context.Background(), nil); err != nil {
		t.Error(err)
	}
	if _, err := Open(o.Out); err == nil {
		t.Error("a foreign bundle can be opened for use")
	}
}

func TestBuildRefuses(t *testing.T) {
	needsAMD64(t)
	tests := []struct {
		name    string
		answers map[string]string
		change  func(t *testing.T, o *BuildOptions)
		want    []string
	}{
		{"missing", map[string]string{"bin/runc": "", "bin/ctr": ""}, nil, []string{"runc: ", "bin/runc is missing", "containerd: ", "bin/ctr is missing"}},
		{"no plugin", map[string]string{"cni/bridge": "", "cni/loopback": ""}, nil, []string{"cni-plugins: no plugin"}},
		{"foreign plugin", map[string]string{"cni/calico": "x"}, nil, []string{"cni/calico"}},
		{"kubelet apart", map[string]string{"bin/kubelet": "Kubernetes v1.35.4\n"}, nil, []string{"kubeadm is v1.36.3, kubelet is v1.35.4"}},
		{"shim apart", map[string]string{"bin/containerd-shim-runc-v2": "x:\n  Version:  v2.2.0\n"}, nil, []string{"containerd is v2.3.7, but containerd-shim-runc-v2 is v2.2.0"}},
		{"plugin apart", map[string]string{"cni/loopback": "CNI loopback plugin v1.1.1\n"}, nil, []string{"bridge is v1.9.1, but loopback is v1.1.1"}},
		{"no answer", map[string]string{"bin/runc": "hello\n"}, nil, []string{"bin/runc", `"hello" does not tell: give the version of runc`}},
		{"Debian's plugins", map[string]string{"cni/bridge": "CNI bridge plugin version unknown\n"}, nil, []string{"cni/bridge", "give the version of cni-plugins"}},
		{"odd version", map[string]string{"bin/runc": "runc version 1\n"}, nil, []string{"bin/runc", `"v1"`}},
		{"other machine", nil, func(t *testing.T, o *BuildOptions) {
			write(t, filepath.Join(o.From, "bin", "kubectl"), program(t, elf.EM_AARCH64, "x"))
		}, []string{"bin/kubectl", "EM_AARCH64"}},
		{"a script", nil, func(t *testing.T, o *BuildOptions) {
			write(t, filepath.Join(o.From, "bin", "kubectl"), []byte("#!/bin/sh\nexec kubectl\n"))
		}, []string{"bin/kubectl", "ELF"}},
		{"empty file", nil, func(t *testing.T, o *BuildOptions) {
			write(t, filepath.Join(o.From, "bin", "kubectl"), nil)
		}, []string{"bin/kubectl"}},
		{"other version wanted", nil, func(_ *testing.T, o *BuildOptions) { o.KubernetesVersion = "v1.37.0" }, []string{"v1.37.0", "v1.36.3"}},
		{"version of nothing", nil, func(_ *testing.T, o *BuildOptions) { o.Versions = map[string]string{"etcd": "v3.6.0"} }, []string{"etcd"}},
		{"nonsense version", nil, func(_ *testing.T, o *BuildOptions) { o.Versions = map[string]string{Runc: "new"} }, []string{"new", "runc"}},
		{"out is foreign", nil, func(t *testing.T, o *BuildOptions) { write(t, filepath.Join(o.Out, "thesis.txt"), []byte("x")) }, []string{"not empty", "not a bundle"}},
		{"out is more than a bundle", nil, func(t *testing.T, o *BuildOptions) {
			write(t, filepath.Join(fixture(t, o.Out, small), "thesis.txt"), []byte("x"))
		}, []string{"thesis.txt"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			o := BuildOptions{From: componentDir(t, elf.EM_X86_64, test.answers), Out: filepath.Join(t.TempDir(), "b")}
			if test.change != nil {
				test.change(t, &o)
			}
			before := snapshot(t, filepath.Dir(o.Out))
			_, err := Build(context.Background(), o)
			if err == nil {
				t.Fatal("built")
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("got %v, want %q", err, want)
				}
			}
			after := snapshot(t, filepath.Dir(o.Out))
			if diff := cmp.Diff(before, after); diff != "" {
				t.Errorf("changed:\n%s", diff)
			}
		})
	}
}
