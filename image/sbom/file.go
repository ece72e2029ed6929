package sbom

import (
	"cmp"
	"context"
	"crypto/sha1" //nolint:gosec // SPDX wants it beside the sha256
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/spdx/tools-golang/spdx/v2/common"
	spdx "github.com/spdx/tools-golang/spdx/v2/v2_3"
	"golang.org/x/sync/errgroup"

	"github.com/node-upgrader/node-upgrader/image"
)

// content is a file and what its bytes tell.
type content struct {
	name         string // in the image, with a leading "./"
	owner        string // the id of the package that contains it
	version      string // of its component
	sha1, sha256 string
	program      bool
	build        *buildinfo.BuildInfo // nil: not a Go program
}

// readFiles reads all files: the bundle's, its manifest and signature, and the
// upgrader last.
func readFiles(ctx context.Context, o Options) ([]content, error) {
	type source struct {
		content
		path, want string
	}
	var all []source
	in := func(name string) string { return filepath.Join(o.Bundle.Dir, filepath.FromSlash(name)) }
	for _, f := range o.Bundle.Manifest.Files {
		c := content{name: "./bundle/" + f.Path, owner: componentID(f.Component), version: o.Bundle.Version(f.Component), program: f.Place != ""}
		all = append(all, source{c, in(f.Path), f.SHA256})
	}
	list := content{name: "./bundle/" + image.ManifestName, owner: rootID}
	all = append(all, source{list, in(image.ManifestName), strings.TrimPrefix(o.Bundle.Digest, "sha256:")})
	if o.Bundle.Signed() {
		all = append(all, source{content{name: "./bundle/" + image.SignatureName, owner: rootID}, in(image.SignatureName), ""})
	}
	if o.Upgrader != "" {
		all = append(all, source{content{name: "./upgrader", owner: upgraderID, program: true}, o.Upgrader, ""})
	}
	files := make([]content, len(all))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(min(8, runtime.GOMAXPROCS(0)))
	for i, s := range all {
		g.Go(func() (err error) {
			files[i] = s.content
			if err := files[i].read(ctx, s.path); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
			if s.want != "" && s.want != files[i].sha256 {
				return &image.BadBundleError{
					File: strings.TrimPrefix(s.name, "./bundle/"), Reason: "was altered: its sha256 is not the manifest's",
					Hint: "fetch or build the bundle again",
				}
			}
			return nil
		})
	}
	return files, g.Wait()
}

func (c *content) read(ctx context.Context, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	one, two := sha1.New(), sha256.New() //nolint:gosec // see above
	if _, err := io.CopyBuffer(io.MultiWriter(one, two), reader{ctx, f}, make([]byte, 128<<10)); err != nil {
		return err
	}
	c.sha1, c.sha256 = hex.EncodeToString(one.Sum(nil)), hex.EncodeToString(two.Sum(nil))
	if c.program {
		// What is no Go program has no build information: no error.
		c.build, _ = buildinfo.Read(f)
	}
	return nil
}

// reader ends early when ctx does.
type reader struct {
	ctx context.Context
	io.Reader
}

func (r reader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.Reader.Read(p)
}

// file adds a file and the modules in it.
func (m *maker) file(c content) {
	f := &spdx.File{
		FileName: c.name, FileSPDXIdentifier: common.ElementID("File-" + short(c.name)),
		Checksums:        []common.Checksum{{Algorithm: common.SHA1, Value: c.sha1}, {Algorithm: common.SHA256, Value: c.sha256}},
		LicenseConcluded: noAssertion, LicenseInfoInFiles: []string{noAssertion}, FileCopyrightText: noAssertion,
	}
	switch {
	case c.build != nil:
		f.FileTypes, f.FileComment = []string{"BINARY"}, "built by "+c.build.GoVersion
	case c.program:
		f.FileTypes, f.FileComment = []string{"BINARY"}, "no Go build information: what is linked into it is not known"
	default:
		f.FileTypes = []string{"OTHER"}
	}
	m.doc.Files = append(m.doc.Files, f)
	id := string(f.FileSPDXIdentifier)
	m.relate(c.owner, "CONTAINS", id)
	for _, module := range modulesOf(c) {
		m.module(module)
		m.relate(id, "STATIC_LINK", module.id())
	}
}

// analyzed gives each package with files the code that stands for them.
func (m *maker) analyzed(files []content) {
	sums := map[string][]string{}
	for _, f := range files {
		sums[f.owner] = append(sums[f.owner], f.sha1)
	}
	for _, p := range m.doc.Packages {
		own := sums[string(p.PackageSPDXIdentifier)]
		if len(own) == 0 {
			continue
		}
		slices.Sort(own)
		sum := sha1.Sum([]byte(strings.Join(own, ""))) //nolint:gosec // as SPDX defines it
		p.FilesAnalyzed = true
		p.PackageVerificationCode = &common.PackageVerificationCode{Value: hex.EncodeToString(sum[:])}
		p.PackageLicenseInfoFromFiles = []string{noAssertion}
	}
}

// Files are a document's files by name, with their sha256.
func Files(data []byte) (map[string]string, error) {
	var doc spdx.Document
	if err := doc.UnmarshalJSON(data); err != nil {
		return nil, fmt.Errorf("read SBOM: %w", err)
	}
	files := map[string]string{}
	for _, f := range doc.Files {
		for _, c := range f.Checksums {
			if c.Algorithm == common.SHA256 {
				files[f.FileName] = c.Value
			}
		}
	}
	return files, nil
}

// Difference is nil where have, files by name with their sha256, is exactly what
// a document names; else it names what differs.
func Difference(data []byte, have map[string]string) error {
	want, err := Files(data)
	if err != nil {
		return err
	}
	var wrong []error
	for name, sum := range want {
		switch got, ok := have[name]; {
		case !ok:
			wrong = append(wrong, fmt.Errorf("%s is in the SBOM only", name))
		case got != sum:
			wrong = append(wrong, fmt.Errorf("%s has another sha256 than in the SBOM", name))
		}
	}
	for name := range have {
		if _, ok := want[name]; !ok {
			wrong = append(wrong, fmt.Errorf("%s is not in the SBOM", name))
		}
	}
	slices.SortFunc(wrong, func(a, b error) int { return cmp.Compare(a.Error(), b.Error()) })
	return errors.Join(wrong...)
}
