package components

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/node-upgrader/node-upgrader/test/debian"
)

// A part is one thing that a set is made of, cached by itself, so that sets
// share it and an interrupted build goes on where it was.
type part struct {
	name    string
	version string
	key     string   // all that decides its content, beside Go and the architecture
	needs   []string // Debian packages that building it takes
	build   func(ctx context.Context, dir string) error
}

//go:embed pause/main.go
var pauseSource string

//go:embed iptables/main.go
var iptablesSource string

//go:embed workload/main.go
var workloadSource string

// parts lists a set's parts in the order in which they are built.
func parts(s Set) []part {
	var list []part
	for _, name := range []string{"kubeadm", "kubelet", "kubectl", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy"} {
		list = append(list, goPart(name, s.Kubernetes, kubernetes(name, s.Kubernetes)))
	}
	return append(list,
		goPart("containerd", s.Containerd, containerd(s.Containerd)),
		runc(s.Runc),
		cni(s.CNI),
		goPart("etcd", s.Etcd, etcd(s.Etcd)),
		goPart("etcdctl", s.Etcd, etcdctl(s.Etcd)),
		goPart("coredns", s.CoreDNS, program{
			module: "github.com/coredns/coredns", version: "v" + s.CoreDNS,
			binary: map[string]string{"github.com/coredns/coredns": "coredns"},
		}),
		own("pause", s.Pause, pauseSource),
		own(iptablesVariant, "1", iptablesSource),
		proxyRoot(),
	)
}

func goPart(name, version string, p program) part {
	return part{name: name, version: version, key: p.key(), build: p.build}
}

func kubernetes(name, version string) program {
	major, rest, _ := strings.Cut(version, ".")
	minor, _, _ := strings.Cut(rest, ".")
	var flags []string
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		flags = append(flags,
			"-X "+pkg+".gitVersion=v"+version,
			"-X "+pkg+".gitMajor="+major,
			"-X "+pkg+".gitMinor="+minor,
			"-X "+pkg+".gitTreeState=clean")
	}
	return program{
		module: "k8s.io/kubernetes", version: "v" + version, staging: "v0." + rest,
		binary:  map[string]string{"k8s.io/kubernetes/cmd/" + name: name},
		ldflags: strings.Join(flags, " "),
	}
}

func containerd(version string) program {
	module := "github.com/containerd/containerd"
	if !strings.HasPrefix(version, "1.") {
		module += "/v2"
	}
	binary := map[string]string{}
	for _, name := range []string{"containerd", "containerd-shim-runc-v2", "ctr"} {
		binary[module+"/cmd/"+name] = name
	}
	return program{
		module: module, version: "v" + version, binary: binary,
		tags:    "no_btrfs,no_devmapper,no_zfs,no_aufs", // what would need C libraries
		ldflags: "-X " + module + "/version.Version=v" + version,
	}
}

func etcd(version string) program {
	return program{
		module: "go.etcd.io/etcd/server/v3", version: "v" + version,
		binary: map[string]string{"go.etcd.io/etcd/server/v3": "etcd"},
	}
}

func etcdctl(version string) program {
	return program{
		module: "go.etcd.io/etcd/etcdctl/v3", version: "v" + version,
		binary: map[string]string{"go.etcd.io/etcd/etcdctl/v3": "etcdctl"},
	}
}

// runc is static with cgo: it must run on hosts that have no libseccomp.
func runc(version string) part {
	if version == debianRunc {
		return fromDebian("runc", "runc", version, "usr/sbin/runc")
	}
	p := goPart("runc", version, program{
		module: "github.com/opencontainers/runc", version: "v" + version,
		binary:  map[string]string{"github.com/opencontainers/runc": "runc"},
		tags:    "seccomp,urfave_cli_no_docs,netgo,osusergo",
		ldflags: "-linkmode external -extldflags -static-pie",
		flags:   []string{"-buildmode=pie"},
		cgo:     true,
	})
	p.needs = []string{"gcc", "libc6-dev", "libseccomp-dev", "pkg-config"}
	return p
}

func cni(version string) part {
	if version == debianCNI {
		return fromDebian("CNI plugins", "containernetworking-plugins", version, "usr/lib/cni/*")
	}
	const module = "github.com/containernetworking/plugins"
	binary := map[string]string{}
	for dir, names := range map[string]string{
		"ipam": "dhcp host-local static",
		"main": "bridge dummy host-device ipvlan loopback macvlan ptp tap vlan",
		"meta": "bandwidth firewall portmap sbr tuning vrf",
	} {
		for name := range strings.FieldsSeq(names) {
			binary[module+"/plugins/"+dir+"/"+name] = name
		}
	}
	return goPart("CNI plugins", version, program{
		module: module, version: "v" + version, binary: binary,
		ldflags: "-X " + module + "/pkg/utils/buildversion.BuildVersion=v" + version,
	})
}

// own is a program of this repository that has one source file and needs the
// standard library only. It is built from the copy in this binary, so that no
// checkout is needed.
func own(name, version, source string) part {
	build := func(ctx context.Context, dir string) error {
		src, err := os.MkdirTemp(dir, "src-")
		if err != nil {
			return err
		}
		for file, text := range map[string]string{"main.go": source, "go.mod": "module node-upgrader.test/" + name + "\n\ngo 1.24\n"} {
			if err := os.WriteFile(filepath.Join(src, file), []byte(text), 0o644); err != nil {
				return err
			}
		}
		_, err = goTool(ctx, src, []string{"CGO_ENABLED=0"}, "build", "-trimpath", "-buildvcs=false",
			"-ldflags", "-s -w -X main.version="+version, "-o", filepath.Join(dir, name), ".")
		if err != nil {
			return err
		}
		return os.RemoveAll(src)
	}
	return part{name: name, version: version, key: source + version, build: build}
}

// fromDebian takes the files that match a pattern from a package of exactly this
// upstream version.
func fromDebian(name, pkg, version, pattern string) part {
	build := func(ctx context.Context, dir string) error {
		src, err := os.MkdirTemp(dir, "src-")
		if err != nil {
			return err
		}
		debs, err := debian.Fetch(ctx, src, pkg)
		if err != nil {
			return err
		}
		for _, deb := range debs {
			got, err := debian.Version(ctx, deb)
			if err != nil {
				return err
			}
			if !strings.HasPrefix(got, version) {
				return fmt.Errorf("this Debian's %s is %s, the table of versions wants %s, which is Debian 12's", pkg, got, version)
			}
		}
		if err := debian.Unpack(ctx, filepath.Join(src, "root"), debs...); err != nil {
			return err
		}
		files, err := filepath.Glob(filepath.Join(src, "root", pattern))
		if err != nil || len(files) == 0 {
			return fmt.Errorf("package %s has no %s: %w", pkg, pattern, os.ErrNotExist)
		}
		for _, file := range files {
			if err := os.Rename(file, filepath.Join(dir, filepath.Base(file))); err != nil {
				return err
			}
		}
		return os.RemoveAll(src)
	}
	return part{name: name, version: version, key: "debian 12 " + pkg + " " + version + " " + pattern, build: build}
}
