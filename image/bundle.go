package image

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"syscall"
)

// Bundle is a bundle whose manifest and directory were found good. Its files'
// contents were not read: see Verify.
type Bundle struct {
	Dir      string
	Digest   string // "sha256:…" of bundle.json's bytes
	Manifest Manifest

	signature []byte // of bundle.json, as it lies beside it; nil: there is none
	verified  verifiedFiles
}

// Open reads and checks a bundle for this machine's architecture. It reads
// bundle.json and looks at every file, but reads none. What is wrong with the
// bundle is a *BadBundleError. It writes nothing.
//
// dir itself may be reached through a link, such as /proc/PID/root/bundle.
func Open(dir string) (*Bundle, error) {
	return open(dir, runtime.GOARCH)
}

// open is Open for a given architecture; "" takes any.
func open(dir, arch string) (*Bundle, error) {
	data, err := readManifest(dir)
	if err != nil {
		return nil, fmt.Errorf("open bundle: %w", err)
	}
	m, err := decode(data)
	if err != nil {
		return nil, fmt.Errorf("open bundle: %w", err)
	}
	if arch != "" && m.Architecture != arch {
		return nil, fmt.Errorf("open bundle: %w", &BadBundleError{
			File:   ManifestName,
			Reason: fmt.Sprintf("is for %s, this machine is %s", m.Architecture, arch),
			Hint:   "use the bundle that was built for " + arch,
		})
	}
	b := &Bundle{Dir: dir, Digest: digestOf(data), Manifest: m}
	seen, err := b.look()
	if err != nil {
		return nil, fmt.Errorf("open bundle: %w", err)
	}
	if seen[SignatureName] != nil {
		if b.signature, err = readSignature(dir); err != nil {
			return nil, fmt.Errorf("open bundle: %w", err)
		}
	}
	return b, nil
}

func digestOf(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// look compares the directory with the manifest by names, kinds and sizes. It
// returns what it saw of each file, bundle.json and its signature included.
func (b *Bundle) look() (map[string]fs.FileInfo, error) {
	want := make(map[string]File, len(b.Manifest.Files))
	dirs := map[string]bool{".": true}
	for _, f := range b.Manifest.Files {
		want[f.Path] = f
		for d := path.Dir(f.Path); d != "."; d = path.Dir(d) {
			dirs[d] = true
		}
	}
	seen := make(map[string]fs.FileInfo, len(want)+1)
	// DirFS, not filepath.WalkDir: it goes through a link at the root only.
	err := fs.WalkDir(os.DirFS(b.Dir), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		f, listed := want[name]
		switch {
		case d.IsDir() && dirs[name]:
			return nil
		case listed && d.IsDir():
			return badFile(name, "is a directory")
		case !listed && name != ManifestName && name != SignatureName:
			return badFile(name, "is not in the manifest")
		}
		fi, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil // told below
		}
		if err != nil {
			return err
		}
		if err := lookAt(name, fi); err != nil {
			return err
		}
		if listed && fi.Size() != f.Size {
			return badFile(name, fmt.Sprintf("has %d bytes instead of %d", fi.Size(), f.Size))
		}
		seen[name] = fi
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, f := range b.Manifest.Files {
		if seen[f.Path] == nil {
			return nil, badFile(f.Path, "is missing")
		}
	}
	return seen, nil
}

func lookAt(name string, fi fs.FileInfo) error {
	switch {
	case fi.Mode()&fs.ModeSymlink != 0:
		return badFile(name, "is a symbolic link")
	case !fi.Mode().IsRegular():
		return badFile(name, fmt.Sprintf("is not a regular file (%s)", fi.Mode().Type()))
	}
	if st, ok := fi.Sys().(*syscall.Stat_t); ok && st.Nlink > 1 {
		return &BadBundleError{
			name, "is hard-linked: who has its other name could change it",
			"copy the bundle (cp -r) and use the copy",
		}
	}
	return nil
}

// File returns a component's file by its name on the host.
func (b *Bundle) File(component, name string) (File, bool) {
	for _, f := range b.Manifest.Files {
		if f.Component == component && f.Name() == name {
			return f, true
		}
	}
	return File{}, false
}

// ComponentFiles returns a component's files, sorted by path.
func (b *Bundle) ComponentFiles(component string) []File {
	var files []File
	for _, f := range b.Manifest.Files {
		if f.Component == component {
			files = append(files, f)
		}
	}
	return files
}

// Version returns a component's version, "" when the bundle does not have it.
func (b *Bundle) Version(component string) string {
	for _, c := range b.Manifest.Components {
		if c.Name == component {
			return c.Version
		}
	}
	return ""
}

// OpenFile opens one of the bundle's files for reading. Its kind and size are
// checked, its content is not: hash what you read. A link in the file's place
// is refused.
func (b *Bundle) OpenFile(f File) (*os.File, error) {
	r, err := openRegular(filepath.Join(b.Dir, filepath.FromSlash(f.Path)))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, badFile(f.Path, "is missing")
	case errors.Is(err, errNotRegular):
		return nil, badFile(f.Path, "is not a regular file")
	case err != nil:
		return nil, err
	}
	if fi, err := r.Stat(); err != nil || fi.Size() != f.Size {
		_ = r.Close()
		if err != nil {
			return nil, err
		}
		return nil, badFile(f.Path, fmt.Sprintf("has %d bytes instead of %d", fi.Size(), f.Size))
	}
	return r, nil
}

// OpenAny is Open for a bundle of whatever architecture, to pack or to look at.
func OpenAny(dir string) (*Bundle, error) { return open(dir, "") }
