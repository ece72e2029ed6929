package imagetest

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
)

// Release is one version of each project, with the v.
type Release struct{ Kubernetes, Containerd, Runc, CNIPlugins string }

// Files are a release's artifacts and checksums for amd64 and arm64, as the
// projects lay them out: by host and path, as on a mirror. The programs say their
// versions as the real ones do.
func (r Release) Files() map[string][]byte {
	files := map[string][]byte{}
	var runcSums strings.Builder
	for arch, machine := range map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64} {
		for name, answer := range map[string]string{
			"kubeadm": "%s\n", "kubelet": "Kubernetes %s\n", "kubectl": "Client Version: %s\nKustomize Version: v5.8.1\n",
		} {
			program := Program(machine, fmt.Sprintf(answer, r.Kubernetes))
			p := fmt.Sprintf("dl.k8s.io/release/%s/bin/linux/%s/%s", r.Kubernetes, arch, name)
			files[p], files[p+".sha256"] = program, []byte(sum(program)) // no name, no newline
		}

		containerd := "containerd github.com/containerd/containerd/v2 " + r.Containerd + " abc\n"
		archive := pack(map[string][]byte{
			"bin/containerd":              Program(machine, containerd),
			"bin/containerd-shim-runc-v2": Program(machine, "containerd-shim-runc-v2:\n  Version:  "+r.Containerd+"\n"),
			"bin/containerd-stress":       Program(machine, containerd),
			"bin/ctr":                     Program(machine, strings.Replace(containerd, "containerd", "ctr", 1)),
		}, "bin/")
		p := fmt.Sprintf("github.com/containerd/containerd/releases/download/%s/containerd-static-%s-linux-%s.tar.gz",
			r.Containerd, strings.TrimPrefix(r.Containerd, "v"), arch)
		files[p], files[p+".sha256sum"] = archive, []byte(sum(archive)+"  "+path.Base(p)+"\n")

		runc := Program(machine, "runc version "+strings.TrimPrefix(r.Runc, "v")+"\nspec: 1.3.0\n")
		files["github.com/opencontainers/runc/releases/download/"+r.Runc+"/runc."+arch] = runc
		fmt.Fprintf(&runcSums, "%s  runc.%s\n", sum(runc), arch)

		plugins := map[string][]byte{"./LICENSE": []byte("Apache"), "./README.md": []byte("#")}
		for _, name := range []string{"bridge", "host-local", "loopback", "portmap"} {
			plugins["./"+name] = Program(machine, "CNI "+name+" plugin "+r.CNIPlugins+"\n")
		}
		archive = pack(plugins, "./")
		p = fmt.Sprintf("github.com/containernetworking/plugins/releases/download/%s/cni-plugins-linux-%s-%s.tgz", r.CNIPlugins, arch, r.CNIPlugins)
		files[p], files[p+".sha256"] = archive, []byte(sum(archive)+"  "+path.Base(p)+"\n")
	}
	files["github.com/opencontainers/runc/releases/download/"+r.Runc+"/runc.sha256sum"] = []byte(runcSums.String())
	return files
}

func sum(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

// pack makes a .tar.gz, always the same; writing to memory cannot fail.
func pack(files map[string][]byte, directory string) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	_ = w.WriteHeader(&tar.Header{Name: directory, Typeflag: tar.TypeDir, Mode: 0o755})
	for _, name := range slices.Sorted(maps.Keys(files)) {
		_ = w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(files[name]))})
		_, _ = w.Write(files[name])
	}
	_ = w.Close()
	_ = z.Close()
	return b.Bytes()
}
