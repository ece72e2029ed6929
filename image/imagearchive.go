package image

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// archives are images in files: OCI layouts, in a directory or a tar, and what
// `docker save` writes.
type archives struct {
	dirs   []string
	images []archived
}

type archived struct {
	file, name string
	find       func(arch string) (foundImage, error)
}

// openArchives looks at what is in the directories. A tar that holds no image is
// an error, other files are not looked at.
func openArchives(dirs []string) (archives, error) {
	a := archives{dirs: dirs}
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return a, err
		}
		all := []string{dir}
		for _, e := range entries {
			if strings.HasSuffix(e.Name(), ".tar") || e.IsDir() {
				all = append(all, filepath.Join(dir, e.Name()))
			}
		}
		for _, file := range all {
			if err := a.open(file); err != nil {
				return a, fmt.Errorf("%s: %w", file, err)
			}
		}
	}
	return a, nil
}

func (a *archives) open(file string) error {
	fi, err := os.Stat(file)
	if err != nil {
		return err
	}
	blobs := blobsIn(os.DirFS(file).Open)
	if fi.IsDir() {
		if _, err := os.Stat(filepath.Join(file, "index.json")); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
	} else {
		if blobs, err = indexTar(file); err != nil {
			return fmt.Errorf("not a tar of an image (a compressed one is to be unpacked first): %w", err)
		}
	}
	index, err := blobs.read("index.json")
	if errors.Is(err, fs.ErrNotExist) {
		return a.openDocker(file)
	}
	if err != nil {
		return err
	}
	var list v1.IndexManifest
	if err := json.Unmarshal(index, &list); err != nil {
		return fmt.Errorf("index.json: %w", err)
	}
	for _, d := range list.Manifests {
		for _, key := range []string{nameAnnotation, refAnnotation} {
			if n := d.Annotations[key]; strings.Contains(n, "/") {
				a.images = append(a.images, archived{file, n, func(arch string) (foundImage, error) { return blobs.image(d, arch) }})
				break
			}
		}
	}
	return nil
}

// openDocker is for an archive without an index.
func (a *archives) openDocker(file string) error {
	open := func() (io.ReadCloser, error) { return os.Open(file) }
	list, err := tarball.LoadManifest(open)
	if err != nil {
		return fmt.Errorf("no image in it: %w", err)
	}
	for _, m := range list {
		for _, n := range m.RepoTags {
			a.images = append(a.images, archived{file, n, func(arch string) (foundImage, error) {
				tag, err := name.NewTag(n)
				if err != nil {
					return foundImage{}, err
				}
				img, err := tarball.Image(open, &tag)
				if err != nil {
					return foundImage{}, err
				}
				config, err := img.ConfigFile()
				if err != nil {
					return foundImage{}, err
				}
				if config.OS != "linux" || config.Architecture != arch {
					return foundImage{}, fmt.Errorf("%s has it for %s/%s: %w", file, config.OS, config.Architecture, fs.ErrNotExist)
				}
				return imageOf(img)
			}})
		}
	}
	return nil
}

// find takes the image with the name; where none has it, the one with the same
// last part, as archives keep the names of the registry that they come from.
func (a archives) find(_ context.Context, ref, arch string) (foundImage, error) {
	for _, same := range []func(string) bool{
		func(n string) bool { return n == ref },
		func(n string) bool { return path.Base(n) == path.Base(ref) },
	} {
		var found []foundImage
		var refused error
		for _, i := range a.images {
			if !same(i.name) {
				continue
			}
			image, err := i.find(arch)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return image, fmt.Errorf("%s: %w", i.file, err)
			}
			if err != nil {
				refused = err
			} else if !slices.ContainsFunc(found, func(o foundImage) bool { return o.target.Digest == image.target.Digest }) {
				found = append(found, image)
			}
		}
		switch {
		case len(found) == 1:
			return found[0], nil
		case len(found) > 1:
			return foundImage{}, fmt.Errorf("%s have several of that name that differ: leave one", strings.Join(a.dirs, ", "))
		case refused != nil:
			return foundImage{}, refused
		}
	}
	return foundImage{}, fmt.Errorf("in none of the archives in %s: %w", strings.Join(a.dirs, ", "), fs.ErrNotExist)
}

// blobsIn opens a file of a layout.
type blobsIn func(name string) (fs.File, error)

func (b blobsIn) read(name string) ([]byte, error) {
	f, err := b(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxImageJSON+1))
	if err == nil && len(data) > maxImageJSON {
		err = fmt.Errorf("%s is larger than %d MiB", name, maxImageJSON>>20)
	}
	return data, err
}

// content reads a small blob and checks its digest.
func (b blobsIn) content(d v1.Descriptor) ([]byte, error) {
	data, err := b.read(blobName(d))
	if err == nil && digestOf(data) != d.Digest.String() {
		err = fmt.Errorf("%s was altered: its sha256 is another", blobName(d))
	}
	return data, err
}

func blobName(d v1.Descriptor) string { return "blobs/" + d.Digest.Algorithm + "/" + d.Digest.Hex }

// image finds the platform's manifest, of which there is one in an index.
func (b blobsIn) image(target v1.Descriptor, arch string) (foundImage, error) {
	found := foundImage{target: target, content: map[string][]byte{}}
	manifest := target
	data, err := b.content(target)
	if err != nil {
		return found, err
	}
	found.content[target.Digest.String()] = data
	if target.MediaType.IsIndex() {
		var list v1.IndexManifest
		if err := json.Unmarshal(data, &list); err != nil {
			return found, fmt.Errorf("%s: %w", blobName(target), err)
		}
		i := slices.IndexFunc(list.Manifests, func(d v1.Descriptor) bool { return fitsPlatform(d, arch) })
		if i < 0 {
			return found, fmt.Errorf("has no image for linux/%s: %w", arch, fs.ErrNotExist)
		}
		manifest = list.Manifests[i]
		if data, err = b.content(manifest); err != nil {
			return found, err
		}
		found.content[manifest.Digest.String()] = data
	}
	m, err := v1.ParseManifest(bytes.NewReader(data))
	if err != nil {
		return found, fmt.Errorf("%s: %w", blobName(manifest), err)
	}
	if found.content[m.Config.Digest.String()], err = b.content(m.Config); err != nil {
		return found, err
	}
	for _, d := range m.Layers {
		found.blobs = append(found.blobs, foundBlob{d, func(context.Context) (io.ReadCloser, error) { return b(blobName(d)) }})
	}
	return found, nil
}

// indexTar finds a tar's files, to be read in its place. The tar may have others
// by the time: what is read is compared with its digest.
func indexTar(file string) (blobsIn, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	type span struct {
		at   int64
		info fs.FileInfo
	}
	spans := map[string]span{}
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		at, err := f.Seek(0, io.SeekCurrent) // tar reads no further than the header
		if err != nil {
			return nil, err
		}
		if h.Typeflag == tar.TypeReg {
			spans[path.Clean(h.Name)] = span{at, h.FileInfo()}
		}
	}
	return func(name string) (fs.File, error) {
		s, ok := spans[name]
		if !ok {
			return nil, fmt.Errorf("%s in %s: %w", name, file, fs.ErrNotExist)
		}
		f, err := os.Open(file)
		if err != nil {
			return nil, err
		}
		return tarred{io.NewSectionReader(f, s.at, s.info.Size()), f, s.info}, nil
	}, nil
}

// tarred is a file in a tar.
type tarred struct {
	io.Reader
	io.Closer
	info fs.FileInfo
}

func (t tarred) Stat() (fs.FileInfo, error) { return t.info, nil }
