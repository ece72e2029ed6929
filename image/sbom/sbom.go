package sbom

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spdx/tools-golang/spdx/v2/common"
	spdx "github.com/spdx/tools-golang/spdx/v2/v2_3"

	"github.com/node-upgrader/node-upgrader/image"
)

// Options say what is described.
type Options struct {
	Bundle   *image.Bundle
	Upgrader string    // the image's executable; "": the bundle alone
	Created  time.Time // by convention SOURCE_DATE_EPOCH; the zero value is 1970
}

const (
	noAssertion = "NOASSERTION"
	namespace   = "https://github.com/node-upgrader/node-upgrader/spdx/"

	rootID     = "Bundle"
	upgraderID = "Upgrader"
)

// Make reads every byte of the bundle and of the upgrader and returns the
// document as JSON. A file that is not what the manifest says is an
// *image.BadBundleError. It writes nothing.
func Make(ctx context.Context, o Options) ([]byte, error) {
	doc, err := makeDocument(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("make SBOM: %w", err)
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(doc); err != nil {
		return nil, fmt.Errorf("encode SBOM: %w", err)
	}
	return b.Bytes(), nil
}

// maker puts the document together.
type maker struct {
	doc     *spdx.Document
	modules map[string]bool // by SPDX id
}

func makeDocument(ctx context.Context, o Options) (*spdx.Document, error) {
	files, err := readFiles(ctx, o)
	if err != nil {
		return nil, err
	}
	if o.Created.IsZero() {
		o.Created = time.Unix(0, 0)
	}
	b := o.Bundle
	m := maker{modules: map[string]bool{}, doc: &spdx.Document{
		SPDXVersion: spdx.Version, DataLicense: spdx.DataLicense, SPDXIdentifier: "DOCUMENT",
		DocumentName: "node-upgrader-" + b.Manifest.KubernetesVersion + "-" + b.Manifest.Architecture,
		CreationInfo: &spdx.CreationInfo{
			Created: o.Created.UTC().Format(time.RFC3339), Creators: []common.Creator{{CreatorType: "Tool", Creator: "upgrader"}},
		},
	}}
	name := strings.TrimPrefix(b.Digest, "sha256:")
	root := m.add(rootID, "node-upgrader-bundle", b.Manifest.KubernetesVersion, "")
	root.PackageChecksums = []common.Checksum{{Algorithm: common.SHA256, Value: name}}
	m.relate("DOCUMENT", "DESCRIBES", rootID)
	for _, c := range b.Manifest.Components {
		p := m.add(componentID(c.Name), c.Name, c.Version, purlOfComponent(c))
		p.PackageDownloadLocation = cmp.Or(download(c), noAssertion)
		m.relate(rootID, "CONTAINS", componentID(c.Name))
	}
	if o.Upgrader != "" {
		m.add(upgraderID, "node-upgrader", "", "")
		m.relate("DOCUMENT", "DESCRIBES", upgraderID)
		name += "-" + files[len(files)-1].sha256[:16]
	}
	m.doc.DocumentNamespace = namespace + name
	if err := m.images(ctx, b); err != nil {
		return nil, err
	}
	for _, f := range files {
		m.file(f)
	}
	m.analyzed(files)
	m.sort()
	return m.doc, nil
}

func (m *maker) add(id, name, version, purl string) *spdx.Package {
	p := &spdx.Package{
		PackageName: name, PackageSPDXIdentifier: common.ElementID(id), PackageVersion: version,
		PackageDownloadLocation: noAssertion, IsFilesAnalyzedTagPresent: true,
		PackageLicenseConcluded: noAssertion, PackageLicenseDeclared: noAssertion, PackageCopyrightText: noAssertion,
	}
	if purl != "" {
		p.PackageExternalReferences = []*spdx.PackageExternalReference{{
			Category: common.CategoryPackageManager, RefType: common.TypePackageManagerPURL, Locator: purl,
		}}
	}
	m.doc.Packages = append(m.doc.Packages, p)
	return p
}

func (m *maker) relate(a, how, b string) {
	m.doc.Relationships = append(m.doc.Relationships, &spdx.Relationship{
		RefA: common.MakeDocElementID("", a), RefB: common.MakeDocElementID("", b), Relationship: how,
	})
}

// images are the container images of the bundle, where it has any.
func (m *maker) images(ctx context.Context, b *image.Bundle) error {
	if b.Version(image.Images) == "" {
		return nil
	}
	all, err := b.Images(ctx)
	if err != nil {
		return err
	}
	for _, i := range all {
		id, target := "Image-"+short(i.Name), i.Target.Digest
		p := m.add(id, i.Name, target.String(), purlOfImage(i.Name, target.String()))
		p.PrimaryPackagePurpose = "CONTAINER"
		p.PackageChecksums = []common.Checksum{{Algorithm: common.SHA256, Value: target.Hex}}
		m.relate(componentID(image.Images), "CONTAINS", id)
	}
	return nil
}

// sort makes the order depend on what is said only.
func (m *maker) sort() {
	slices.SortFunc(m.doc.Packages, func(a, b *spdx.Package) int {
		return cmp.Compare(a.PackageSPDXIdentifier, b.PackageSPDXIdentifier)
	})
	slices.SortFunc(m.doc.Files, func(a, b *spdx.File) int { return cmp.Compare(a.FileName, b.FileName) })
	slices.SortFunc(m.doc.Relationships, func(a, b *spdx.Relationship) int {
		return cmp.Or(cmp.Compare(a.RefA.ElementRefID, b.RefA.ElementRefID), cmp.Compare(a.Relationship, b.Relationship),
			cmp.Compare(a.RefB.ElementRefID, b.RefB.ElementRefID))
	})
}
