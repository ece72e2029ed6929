//go:build e2e

package steps

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/node-upgrader/node-upgrader/hostexec"
	"github.com/node-upgrader/node-upgrader/image"
	"github.com/node-upgrader/node-upgrader/test/components"
)

// A real kubelet is tried as on a node. It must say what it refuses, and leave nothing behind.
func TestTryRealKubelet(t *testing.T) {
	set, err := components.Lookup("1.36")
	if err != nil {
		t.Fatal(err)
	}
	built, err := components.Build(t.Context(), set, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(built.Bin, "kubelet")
	content, err := os.ReadFile(binary)
	if err != nil {
		t.Fatal(err)
	}
	const good = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
clusterDNS: [10.96.0.10]
clusterDomain: cluster.local
rotateCertificates: true
staticPodPath: /etc/kubernetes/manifests
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
`
	for _, tc := range []struct{ name, args, config, want string }{
		{"good", "--kubeconfig=/etc/kubernetes/kubelet.conf --node-ip=10.0.0.1", good, ""},
		{"json log", "--logging-format=json --no-such-flag", good, "failed to parse kubelet flag: unknown flag: --no-such-flag"},
		{"removed flag", "--pod-infra-container-image=registry.k8s.io/pause:3.10", good, "failed to parse kubelet flag: unknown flag: --pod-infra-container-image"},
		{"removed gate", "", good + "featureGates: {MemoryManager: true}\n", "unrecognized feature gate: MemoryManager"},
		{"removed gate as a flag", "--feature-gates=MemoryManager=true", good, "unrecognized feature gate: MemoryManager"},
		{"bad value", "", good + "healthzPort: 70000\n", "healthzPort (--healthz-port) 70000 must be between 1 and 65535"},
		{"bad type", "", good + "healthzPort: abc\n", "healthzPort of type int32"},
		{"unknown field", "", good + "noSuchField: 1\n", ""}, // a warning to the kubelet too
		{"bad json log", "", good + "logging: {format: json}\nhealthzPort: 70000\n", "healthzPort (--healthz-port) 70000"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			root := t.TempDir()
			config := filepath.Join(root, "config.yaml")
			if err := os.WriteFile(config, []byte(tc.config), 0o600); err != nil {
				t.Fatal(err)
			}
			before, err := filepath.Glob("/tmp/kubelet-*")
			if err != nil {
				t.Fatal(err)
			}
			env := Env{
				Host: hostexec.Host{FS: hostexec.NewFS("/"), Commands: hostexec.Exec{}}, Log: slog.New(slog.DiscardHandler),
				Bundle: &image.Bundle{Dir: filepath.Dir(binary), Manifest: image.Manifest{Files: []image.File{{
					Path: filepath.Base(binary), Component: image.Kubelet, Place: "/usr/bin/kubelet",
					Size: int64(len(content)), SHA256: sha256Of(content),
				}}}},
			}
			var f kubeletFound
			args := append(strings.Fields(tc.args), "--config="+config, "--cert-dir="+filepath.Join(root, "pki"))
			for _, stdin := range [][]byte{nil, []byte(tc.config)} {
				got, err := tryKubelet(t.Context(), env, f, args, stdin)
				if err != nil || tc.want == "" && got != "" || !strings.Contains(got, tc.want) {
					t.Errorf("it complains of %q, %v; want %q", got, err, tc.want)
				}
			}
			entries, err := os.ReadDir(root)
			if err != nil || len(entries) != 1 {
				t.Errorf("it left %v, %v", entries, err)
			}
			if after, err := filepath.Glob("/tmp/kubelet-*"); err != nil || len(after) > len(before) {
				t.Errorf("it left %v, %v", after, err)
			}
		})
	}
}
