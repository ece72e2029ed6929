package image

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/pelletier/go-toml/v2"
	"golang.org/x/sync/errgroup"

	"github.com/node-upgrader/node-upgrader/image/oci"
)

// ContainerImageOptions say which images a bundle brings, and where they come from.
type ContainerImageOptions struct {
	// List are the names: registry/repository:tag. Empty: those that the
	// bundle's kubeadm and containerd name when they are asked, which they can
	// be on a machine of their architecture only.
	List []string
	// Repository takes the place of registry.k8s.io in the names of kubeadm, as
	// by its own --image-repository. Not together with List.
	Repository string
	// From are directories with archives of images (OCI or docker, not
	// compressed) or with OCI layouts: no registry is asked then.
	From []string
	// Mirrors are where a registry's images are fetched from: registry to
	// registry/path. The names stay.
	Mirrors map[string]string
	// Registry says how these are spoken to.
	Registry oci.RegistryOptions

	// asked is what the programs for this machine have named, for those of the
	// same set that cannot be asked; nil for a single bundle.
	asked *[]wanted
}

// wanted is an image to be brought, and under which name it is fetched.
type wanted struct{ name, source string }

// found is an image in its source.
type foundImage struct {
	target  v1.Descriptor
	content map[string][]byte // manifests, by digest
	blobs   []foundBlob
}

type foundBlob struct {
	v1.Descriptor
	open func(context.Context) (io.ReadCloser, error)
}

// imageSource is where images come from. What it does not have is os.ErrNotExist.
type imageSource interface {
	find(ctx context.Context, name, arch string) (foundImage, error)
}

func (o ContainerImageOptions) source() (imageSource, error) {
	if len(o.From) > 0 {
		return openArchives(o.From)
	}
	client, err := oci.NewRegistries(o.Registry)
	return registries{client, o.Mirrors}, err
}

// addImages puts the images into the bundle that is being made in dir, and into
// its manifest. The bundle's programs are there already.
func addImages(ctx context.Context, o ContainerImageOptions, dir string, m *Manifest) error {
	list, err := wantedImages(ctx, o, dir, m.Architecture, m.KubernetesVersion)
	if err != nil {
		return err
	}
	source, err := o.source()
	if err != nil {
		return err
	}
	l := layoutWriter{dir: filepath.Join(dir, Images), arch: m.Architecture}
	for _, w := range list {
		if err := l.add(ctx, source, w); err != nil {
			return fmt.Errorf("image %s: %w", w.name, err)
		}
	}
	files, err := l.write(ctx)
	if err != nil {
		return fmt.Errorf("images: %w", err)
	}
	m.SchemaVersion = SchemaVersionImages
	m.Files = append(m.Files, files...)
	slices.SortFunc(m.Files, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	m.Components = append(m.Components, Component{Images, m.KubernetesVersion})
	slices.SortFunc(m.Components, func(a, b Component) int { return strings.Compare(a.Name, b.Name) })
	return nil
}

// wantedImages are sorted by name, each once.
func wantedImages(ctx context.Context, o ContainerImageOptions, dir, arch, kubernetes string) ([]wanted, error) {
	var list []wanted
	for _, n := range o.List {
		list = append(list, wanted{n, n})
	}
	if len(list) == 0 && o.asked != nil {
		list = slices.Clone(*o.asked)
	}
	if len(list) == 0 {
		if foreign(arch) {
			return nil, fmt.Errorf("the programs for %s cannot be asked on this machine which images they need: give the list (upgrader bundle inspect --output images, of a bundle of the same version for this machine)", arch)
		}
		var err error
		if list, err = askImages(ctx, o.Repository, dir, kubernetes); err != nil {
			return nil, err
		}
		if o.asked != nil {
			*o.asked = slices.Clone(list)
		}
	} else if o.Repository != "" && len(o.List) > 0 {
		return nil, errors.New("a list of images has whole names: no other repository can be given")
	}
	for i, w := range list {
		tag, err := name.NewTag(w.name, name.StrictValidation)
		if err != nil || tag.Name() != w.name {
			return nil, fmt.Errorf("%q is not the name of an image, registry/repository:tag", printable(w.name))
		}
		list[i].name = tag.Name()
	}
	slices.SortFunc(list, func(a, b wanted) int { return strings.Compare(a.name, b.name) })
	return slices.CompactFunc(list, func(a, b wanted) bool { return a.name == b.name }), nil
}

// askImages asks the bundle's kubeadm for the images of a control plane, and its
// containerd for that of its sandboxes, which has that name on a node whose
// configuration names no other, whatever the repository.
func askImages(ctx context.Context, repository, dir, kubernetes string) ([]wanted, error) {
	args := []string{"config", "images", "list", "--kubernetes-version", kubernetes}
	if repository != "" {
		args = append(args, "--image-repository", repository)
	}
	out, err := askProgram(ctx, filepath.Join(dir, Kubeadm, "kubeadm"), args...)
	if err != nil {
		return nil, err
	}
	var list []wanted
	for n := range strings.FieldsSeq(string(out)) {
		list = append(list, wanted{n, n})
	}
	if out, err = askProgram(ctx, filepath.Join(dir, Containerd, "containerd"), "config", "default"); err != nil {
		return nil, err
	}
	sandbox, err := SandboxImage(out)
	if err != nil || sandbox == "" {
		return list, err
	}
	source := sandbox
	if repository != "" {
		source = strings.TrimSuffix(repository, "/") + "/" + path.Base(sandbox)
	}
	return append(list, wanted{sandbox, source}), nil
}

// SandboxImage is the image of every pod's first container in a configuration of
// containerd: where 2.x has it, else where 1.7 has it. "" where there is none.
func SandboxImage(config []byte) (string, error) {
	var c struct {
		Plugins map[string]struct {
			Sandbox string `toml:"sandbox_image"`
			Pinned  struct {
				Sandbox string `toml:"sandbox"`
			} `toml:"pinned_images"`
		} `toml:"plugins"`
	}
	if err := toml.Unmarshal(config, &c); err != nil {
		return "", fmt.Errorf("read containerd's configuration: %w", err)
	}
	if s := c.Plugins["io.containerd.cri.v1.images"].Pinned.Sandbox; s != "" {
		return s, nil
	}
	return c.Plugins["io.containerd.grpc.v1.cri"].Sandbox, nil
}

// askProgram returns what a program writes to its standard output.
func askProgram(ctx context.Context, program string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/nonexistent", "LC_ALL=C"}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("ask %s %s: %w: %s", filepath.Base(program), strings.Join(args, " "), err, firstLine(stderr.Bytes()))
	}
	return out, nil
}

// layoutWriter makes an OCI layout.
type layoutWriter struct {
	dir, arch string
	index     v1.IndexManifest
	content   map[string][]byte    // small blobs, by digest
	blobs     map[string]foundBlob // the others
}

func (l *layoutWriter) add(ctx context.Context, source imageSource, w wanted) error {
	found, err := source.find(ctx, w.source, l.arch)
	if err != nil {
		return err
	}
	if l.content == nil {
		l.content, l.blobs = map[string][]byte{}, map[string]foundBlob{}
	}
	for digest, data := range found.content {
		l.content[digest] = data
	}
	for _, b := range found.blobs {
		l.blobs[b.Digest.String()] = b
	}
	target := bare(found.target)
	target.Annotations = map[string]string{nameAnnotation: w.name, refAnnotation: w.name}
	l.index.Manifests = append(l.index.Manifests, target)
	return nil
}

// write fetches all blobs and returns the manifest's entries.
func (l *layoutWriter) write(ctx context.Context) ([]File, error) {
	l.index.SchemaVersion, l.index.MediaType = 2, types.OCIImageIndex
	index, err := json.Marshal(l.index)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Join(l.dir, "blobs", "sha256"), 0o755); err != nil {
		return nil, err
	}
	files := []File{imageFile("oci-layout"), imageFile("index.json")}
	small := [][]byte{[]byte(`{"imageLayoutVersion":"1.0.0"}`), index}
	for digest, data := range l.content {
		files = append(files, imageFile("blobs/sha256/"+strings.TrimPrefix(digest, "sha256:")))
		small = append(small, data)
	}
	for i, data := range small {
		files[i].Size, files[i].SHA256 = int64(len(data)), strings.TrimPrefix(digestOf(data), "sha256:")
		if err := os.WriteFile(filepath.Join(filepath.Dir(l.dir), files[i].Path), data, 0o644); err != nil {
			return nil, err
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(workers())
	for digest, b := range l.blobs {
		if _, written := l.content[digest]; written {
			continue
		}
		f := imageFile("blobs/sha256/" + b.Digest.Hex)
		f.Size, f.SHA256 = b.Size, b.Digest.Hex
		files = append(files, f)
		g.Go(func() error { return b.save(ctx, f, filepath.Join(filepath.Dir(l.dir), f.Path)) })
	}
	return files, g.Wait()
}

func imageFile(name string) File {
	return File{Path: Images + "/" + name, Component: Images, Mode: 0o644}
}

// save fetches a blob, which has to be what its descriptor says.
func (b foundBlob) save(ctx context.Context, f File, to string) (err error) {
	if b.Digest.Algorithm != "sha256" {
		return fmt.Errorf("blob %s: its digest is no sha256", printable(b.Digest.String()))
	}
	src, err := b.open(ctx)
	if err != nil {
		return fmt.Errorf("blob %s: %w", b.Digest, err)
	}
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dst.Close()) }()
	if err := copyChecked(ctx, dst, src, f); err != nil {
		return fmt.Errorf("blob %s: %w", b.Digest, err)
	}
	return nil
}

// copyChecked copies src to its end, which has to be the file's bytes.
func copyChecked(ctx context.Context, dst io.Writer, src io.Reader, f File) error {
	_, err := io.CopyBuffer(struct{ io.Writer }{dst}, newCheckedReader(ctx, src, f, nil), make([]byte, bufferSize))
	return err
}
