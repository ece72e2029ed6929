//go:build e2e_upstream

package upstream

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

const (
	e2eImages     = "registry.k8s.io/e2e-test-images/"
	critestImages = "gcr.io/k8s-staging-cri-tools/"
)

// An image is what critest asks for under some names.
// https://github.com/kubernetes-sigs/cri-tools/tree/master/images
type image struct {
	refs       []string
	files      []file // beside busybox's
	entrypoint []string
	user       string
}

// testImages lists every image that critest may ask for. part is the program in
// standin. The one image that is missing is named in Exclusions.
func testImages(part string) []image {
	web := func(name, title, listen string, refs ...string) image {
		return image{
			refs:       refs,
			files:      []file{{path: "usr/sbin/" + name, mode: 0o755, from: part}, {path: "var/run", mode: os.ModeDir | 0o755}},
			entrypoint: []string{"/usr/sbin/" + name, "web", "-title", title, "-listen", listen, "-pid", "/var/run/" + name + ".pid"},
		}
	}
	const nginx = "nginx: master process nginx"
	images := []image{
		{refs: []string{e2eImages + "busybox:1.29-2"}},
		web("nginx", nginx, ":80", e2eImages+"nginx:1.14-2"),
		web("nginx", nginx, ":12003", critestImages+"hostnet-nginx-"+runtime.GOARCH+":latest"),
		web("httpd", "httpd", ":80", e2eImages+"httpd:2.4.39-4"),
		{
			refs:       []string{e2eImages + "nonewprivs:1.3"},
			files:      []file{{path: "nnp", mode: os.ModeSetuid | 0o755, from: part}},
			entrypoint: []string{"/nnp", "euid"},
		},
		{
			refs: []string{critestImages + "test-image-predefined-group:latest"},
			files: []file{
				{path: "etc/passwd", mode: 0o644, text: passwd + "default-user:x:1000:1000::/home/default-user:/bin/sh\n"},
				{path: "etc/group", mode: 0o644, text: group + "default-user:x:1000:\ngroup-defined-in-image:x:50000:default-user\n"},
			},
			user: "1000",
		},
		// The same image in two registries, and under three tags.
		{refs: []string{"registry.k8s.io/pause:3.9", "k8s.gcr.io/pause:3.9"}, entrypoint: []string{"/bin/sleep", "infinity"}},
		{refs: []string{critestImages + "test-image-tags:1", critestImages + "test-image-tags:2", critestImages + "test-image-tags:3"}},
	}
	for _, name := range []string{"test-image-1:latest", "test-image-2:latest", "test-image-3:latest", "test-image-latest:latest", "test-image-tag:test", "test-image-tag:all"} {
		images = append(images, image{refs: []string{critestImages + name}})
	}
	for name, user := range map[string]string{"uid": "1002", "username": "www-data", "uid-group": "1003:1004", "username-group": "www-data:1004"} {
		images = append(images, image{refs: []string{critestImages + "test-image-user-" + name + ":latest"}, user: user})
	}
	return images
}

// build makes the image of busybox's layer and its own files. The name is in a
// label: images of different names must not share an ID.
func (im image) build(busybox v1.Layer) (v1.Image, error) {
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	command := []string{"sh"}
	if im.entrypoint != nil {
		command = nil
	}
	img, err := mutate.ConfigFile(img, &v1.ConfigFile{
		OS: "linux", Architecture: runtime.GOARCH,
		Config: v1.Config{
			Entrypoint: im.entrypoint, Cmd: command, User: im.user, WorkingDir: "/",
			Env:    []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
			Labels: map[string]string{"org.opencontainers.image.title": im.refs[0]},
		},
		RootFS: v1.RootFS{Type: "layers"},
	})
	if err != nil {
		return nil, err
	}
	layers := []v1.Layer{busybox}
	if len(im.files) > 0 {
		data, err := tarOf(im.files)
		if err != nil {
			return nil, err
		}
		layers = append(layers, static.NewLayer(data, types.OCIUncompressedLayer))
	}
	return mutate.AppendLayers(img, layers...)
}

// makeImages writes the images into an OCI layout in dir, for standin's
// registry. root is busybox's root file system, part the program standin.
func makeImages(ctx context.Context, dir, root, part string) error {
	files, err := busyboxFiles(ctx, root)
	if err != nil {
		return err
	}
	data, err := tarOf(files)
	if err != nil {
		return err
	}
	busybox := static.NewLayer(data, types.OCIUncompressedLayer)
	to, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	for _, im := range testImages(part) {
		img, err := im.build(busybox)
		if err != nil {
			return fmt.Errorf("image %s: %w", im.refs[0], err)
		}
		for _, ref := range im.refs {
			named := layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": ref})
			if err := to.AppendImage(img, named); err != nil {
				return fmt.Errorf("image %s: %w", ref, err)
			}
		}
	}
	return nil
}

const (
	passwd = "root:x:0:0:root:/root:/bin/sh\nwww-data:x:33:33:www-data:/var/www:/bin/false\nnobody:x:65534:65534:nobody:/home:/bin/false\n"
	group  = "root:x:0:\nwww-data:x:33:\nnogroup:x:65534:\n"
)

// busyboxFiles is Debian's busybox, the libraries that it needs, and what
// critest expects of a busybox and Debian's has not. Its applets are hard links:
// critest masks one of them, and the others have to stay.
func busyboxFiles(ctx context.Context, root string) ([]file, error) {
	files := []file{
		{path: "etc/passwd", mode: 0o644, text: passwd},
		{path: "etc/group", mode: 0o644, text: group},
		{path: "tmp", mode: os.ModeDir | os.ModeSticky | 0o777},
		{path: "root", mode: os.ModeDir | 0o700},
		{path: "home", mode: os.ModeDir | 0o755},
		{path: "bin/busybox", mode: 0o755, from: filepath.Join(root, "usr/bin/busybox")},
		{path: "bin/ipcs", mode: 0o755, text: "#!/bin/sh\nexec cat /proc/sysvipc/shm\n"},
		{path: "bin/pgrep", mode: 0o755, text: "#!/bin/sh\nexec pidof \"$@\"\n"},
	}
	libraries, err := libraries(root)
	if err != nil {
		return nil, err
	}
	files = append(files, libraries...)
	cmd := exec.CommandContext(ctx, "/usr/bin/busybox", "--list")
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
	cmd.Dir = "/"
	list, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("busybox --list: %w", err)
	}
	for applet := range strings.FieldsSeq(string(list)) {
		if applet != "busybox" {
			files = append(files, file{path: path.Join("bin", applet), hard: "bin/busybox"})
		}
	}
	return files, nil
}
