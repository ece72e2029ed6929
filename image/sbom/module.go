package sbom

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"net/url"
	"runtime/debug"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/node-upgrader/node-upgrader/image"
)

// module is a Go module that is linked into a program.
type module struct{ path, version, sum, comment string }

func (m module) id() string { return "Go-" + short(m.path+"@"+m.version) }

// modulesOf are the program's own module, what it needs, and the standard
// library, which has the toolchain's version.
func modulesOf(c content) []module {
	if c.build == nil {
		return nil
	}
	main := module{path: cmp.Or(c.build.Main.Path, c.build.Path), version: c.build.Main.Version, comment: "the program's own module"}
	if (main.version == "" || main.version == "(devel)") && c.version != "" {
		main.version = c.version // a build from a checkout does not know
	}
	goVersion, _, _ := strings.Cut(strings.TrimPrefix(c.build.GoVersion, "go"), " ") // experiments follow
	all := []module{main, {path: "stdlib", version: goVersion}}
	for _, d := range c.build.Deps {
		all = append(all, moduleOf(d))
	}
	return all
}

// moduleOf is the module whose code was built in: a replacement is what it was
// replaced by, and a directory has no other name than the module that it stands
// for.
func moduleOf(d *debug.Module) module {
	switch r := d.Replace; {
	case r == nil:
		return module{path: d.Path, version: d.Version, sum: d.Sum}
	case r.Version == "":
		return module{path: d.Path, version: d.Version, comment: "replaced by the directory " + r.Path + " of the build"}
	default:
		return module{path: r.Path, version: r.Version, sum: r.Sum, comment: "in place of " + d.Path + " " + d.Version}
	}
}

// module adds a module once, however many programs have it.
func (m *maker) module(mod module) {
	if m.modules[mod.id()] {
		return
	}
	m.modules[mod.id()] = true
	p := m.add(mod.id(), mod.path, mod.version, purlOfModule(mod.path, mod.version))
	p.PackageComment = mod.comment
	if mod.sum != "" {
		p.PackageSourceInfo = "go.sum: " + mod.sum
	}
	p.PrimaryPackagePurpose = "LIBRARY"
}

// purlOfModule follows https://github.com/package-url/purl-spec: a Go module's
// path is in lower case there.
func purlOfModule(path, version string) string {
	purl := "pkg:golang/" + strings.ToLower(path)
	if version != "" {
		purl += "@" + url.QueryEscape(version)
	}
	return purl
}

// projects are where components come from, on GitHub.
func project(component string) string {
	switch component {
	case image.Containerd:
		return "containerd/containerd"
	case image.Runc:
		return "opencontainers/runc"
	case image.CNIPlugins:
		return "containernetworking/plugins"
	case image.Kubeadm, image.Kubelet, image.Kubectl:
		return "kubernetes/kubernetes"
	}
	return ""
}

func purlOfComponent(c image.Component) string {
	p := project(c.Name)
	if p == "" {
		return ""
	}
	return "pkg:github/" + p + "@" + url.QueryEscape(c.Version)
}

func download(c image.Component) string {
	if p := project(c.Name); p != "" {
		return "https://github.com/" + p
	}
	return ""
}

func purlOfImage(ref, digest string) string {
	r, err := name.ParseReference(ref)
	if err != nil {
		return ""
	}
	repository := r.Context().Name()
	base := repository[strings.LastIndex(repository, "/")+1:]
	return "pkg:oci/" + strings.ToLower(base) + "@" + url.QueryEscape(digest) + "?repository_url=" + url.QueryEscape(repository) +
		"&tag=" + url.QueryEscape(r.Identifier())
}

func componentID(name string) string { return "Component-" + name }

// short is a name in the letters that an SPDX id may have.
func short(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:10])
}
