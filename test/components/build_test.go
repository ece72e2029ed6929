package components

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// fakeParts makes a set's parts without their long builds.
func fakeParts(s Set) []part {
	kubeadm := "#!/bin/sh\n[ \"$*\" = 'config images list --kubernetes-version v" + s.Kubernetes + "' ] || exit 1\n" +
		"echo registry.k8s.io/kube-apiserver:v" + s.Kubernetes +
		" registry.k8s.io/coredns/coredns:v" + s.CoreDNS +
		" registry.k8s.io/pause:" + s.Pause +
		" registry.k8s.io/etcd:" + s.Etcd + "-0\n"
	list := parts(s)
	for i, p := range list {
		names := map[string]string{p.name: "binary"}
		switch p.name {
		case "kubeadm":
			names = map[string]string{"kubeadm": kubeadm}
		case "containerd":
			names = map[string]string{"containerd": "", "containerd-shim-runc-v2": "", "ctr": ""}
		case "CNI plugins":
			names = map[string]string{"bridge": "", "portmap": ""}
		}
		list[i].needs = nil
		list[i].build = func(_ context.Context, dir string) error {
			for name, text := range names {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
					return err
				}
			}
			return nil
		}
	}
	return list
}

func TestAssemble(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	set := Sets()[0]
	list := fakeParts(set)
	var progress bytes.Buffer
	b := &builder{ctx: t.Context(), progress: &progress, platform: "test", of: len(list) + 1}
	tmp := t.TempDir()
	if err := b.assemble(set, list, tmp); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"bin/containerd", "bin/containerd-shim-runc-v2", "bin/ctr", "bin/kubeadm", "bin/kubectl", "bin/kubelet", "bin/runc",
		"cni/bridge", "cni/portmap",
		"image-names",
		"images/coredns_v" + set.CoreDNS + ".tar", "images/etcd_" + set.Etcd + "-0.tar",
		"images/kube-apiserver_v" + set.Kubernetes + ".tar", "images/pause_" + set.Pause + ".tar",
	}
	var got []string
	for _, pattern := range []string{"*/*", "image-names"} {
		found, err := filepath.Glob(filepath.Join(tmp, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range found {
			got = append(got, strings.TrimPrefix(f, tmp+"/"))
		}
	}
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	lines := strings.Split(strings.TrimSpace(progress.String()), "\n")
	if len(lines) != b.of || lines[1] != "building kubelet "+set.Kubernetes+" (2 of 17) … 0 s" {
		t.Errorf("progress:\n%s", progress.String())
	}

	progress.Reset()
	if err := b.assemble(set, list, t.TempDir()); err != nil {
		t.Fatal(err)
	}
	if got := progress.String(); strings.Contains(got, "kubelet") {
		t.Errorf("parts in the cache were built again:\n%s", got)
	}
}

func TestAssembleRefusesATableThatKubeadmContradicts(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	set := Sets()[0]
	list := fakeParts(set)
	set.Etcd = "3.0.1"
	b := &builder{ctx: t.Context(), progress: &bytes.Buffer{}, platform: "test", of: len(list) + 1}
	err := b.assemble(set, list, t.TempDir())
	if err == nil || !strings.Contains(err.Error(), "etcd:3.0.1-0") {
		t.Errorf("error %v, want one that names etcd:3.0.1-0", err)
	}
}

func TestAssembleNamesTheFailedPart(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	set := Sets()[0]
	list := fakeParts(set)
	broken := errors.New("broken")
	list[1].build = func(context.Context, string) error { return broken }
	b := &builder{ctx: t.Context(), progress: &bytes.Buffer{}, platform: "test", of: len(list) + 1}
	err := b.assemble(set, list, t.TempDir())
	if !errors.Is(err, broken) || !strings.Contains(err.Error(), "kubelet "+set.Kubernetes) {
		t.Errorf("error %v", err)
	}
}

// TestOwn builds this repository's own programs, and runs pause.
func TestOwn(t *testing.T) {
	if testing.Short() {
		t.Skip("runs the go command")
	}
	dir := t.TempDir()
	for _, p := range []part{own("pause", "3.2.1", pauseSource), own(iptablesVariant, "1", iptablesSource), own("workload", "v1", workloadSource)} {
		if err := p.build(t.Context(), dir); err != nil {
			t.Fatal(err)
		}
	}
	out, err := exec.CommandContext(t.Context(), filepath.Join(dir, "pause"), "-v").CombinedOutput()
	if err != nil || string(out) != "pause 3.2.1\n" {
		t.Errorf("pause -v: %q, %v", out, err)
	}
	// Nothing shows from outside that it has come to its Notify, so a signal
	// that came too early is tried again later.
	for wait := 20 * time.Millisecond; ; wait *= 3 {
		pause := exec.CommandContext(t.Context(), filepath.Join(dir, "pause"))
		if err := pause.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(wait)
		if err := pause.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		err := pause.Wait()
		if err == nil {
			return
		}
		if wait > 2*time.Second {
			t.Fatalf("pause after SIGTERM: %v", err)
		}
	}
}
