package image

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestBadBundles(t *testing.T) {
	const kubelet, other = "kubelet/kubelet", "cni-plugins/bridge"
	at := func(change func(*File)) func(*testing.T, string) {
		return edit(func(m *Manifest) {
			for i := range m.Files {
				if m.Files[i].Path == kubelet {
					change(&m.Files[i])
				}
			}
		})
	}
	tests := []struct {
		name     string
		spoil    func(*testing.T, string)
		file     string
		reason   string
		contents bool // only seen by reading
	}{
		{"manifest missing", file(ManifestName, os.Remove), ManifestName, "missing", false},
		{"manifest a directory", file(ManifestName, replaced(directory)), ManifestName, "regular", false},
		{"manifest a fifo", file(ManifestName, replaced(fifo)), ManifestName, "regular", false},
		{"manifest a link", file(ManifestName, func(p string) error {
			return errors.Join(os.Rename(p, p+".x"), os.Symlink(p+".x", p))
		}), ManifestName, "regular", false},
		{"manifest huge", file(ManifestName, func(p string) error { return os.Truncate(p, 1<<30) }), ManifestName, "larger", false},
		{"manifest huge of spaces", file(ManifestName, func(p string) error {
			return os.WriteFile(p, bytes.Repeat([]byte(" "), maxManifest+1), 0o644)
		}), ManifestName, "larger", false},
		{"manifest empty", file(ManifestName, func(p string) error { return os.Truncate(p, 0) }), ManifestName, "JSON", false},
		{"manifest cut", file(ManifestName, func(p string) error { return os.Truncate(p, 500) }), ManifestName, "JSON", false},
		{"trailing data", func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, ManifestName), append(read(t, dir, ManifestName), "{}"...))
		}, ManifestName, "JSON", false},
		{"unknown field", rewrite(`"architecture"`, `"surprise": 1, "architecture"`), ManifestName, "surprise", false},
		{"unknown field in a file", rewrite(`"component"`, `"uid": 0, "component"`), ManifestName, "uid", false},
		{"repeated key", rewrite(`"architecture"`, `"architecture": "x", "architecture"`), ManifestName, "repeated", false},
		{"other spelling", rewrite(`"architecture"`, `"Architecture"`), ManifestName, "spelled", false},
		{"escaped", rewrite(`kubelet/kubelet`, `kubelet/kubele\u0074`), ManifestName, "spelled", false},
		{"mode a number", rewrite(`"0755"`, `493`), ManifestName, "read", false},
		{"mode not octal", rewrite(`"0755"`, `"0799"`), ManifestName, "octal", false},
		{"mode in other words", rewrite(`"0755"`, `"755"`), ManifestName, "spelled", false},
		{"unknown schema", rewrite(`"schemaVersion": 1`, `"schemaVersion": 3`), ManifestName, "schema version 3", false},
		{"newer schema with new fields", rewrite(`"schemaVersion": 1`, `"new": 1, "schemaVersion": 3`), ManifestName, "schema version 3", false},
		{"no schema", rewrite(`"schemaVersion": 1,`, ``), ManifestName, "schema version 0", false},
		{"other architecture", edit(func(m *Manifest) { m.Architecture = "s390x" }), ManifestName, "is for s390x", false},
		{"unknown architecture", edit(func(m *Manifest) { m.Architecture = "vax" }), ManifestName, "vax", false},
		{"bad version", edit(func(m *Manifest) { m.KubernetesVersion = "latest" }), ManifestName, "latest", false},
		{"version apart", edit(func(m *Manifest) { m.KubernetesVersion = "v1.35.0" }), ManifestName, "kubeadm v1.36.3", false},
		{"component without a file", edit(func(m *Manifest) {
			m.Components = append(m.Components, Component{"zot", "v1.0.0"})
		}), ManifestName, "no file for zot", false},
		{"component twice", edit(func(m *Manifest) { m.Components = append(m.Components, m.Components[5]) }), ManifestName, "twice", false},
		{"no files", edit(func(m *Manifest) { m.Files = nil }), ManifestName, "no file", false},

		{"path climbs", at(func(f *File) { f.Path = "kubelet/../../kubelet" }), "kubelet/../../kubelet", "clean path", false},
		{"path not clean", at(func(f *File) { f.Path = "kubelet//kubelet" }), "kubelet//kubelet", "clean path", false},
		{"path absolute", at(func(f *File) { f.Path = "/etc/passwd" }), "/etc/passwd", "clean path", false},
		{"path empty", at(func(f *File) { f.Path = "" }), "", "clean path", false},
		{"path a dot", at(func(f *File) { f.Path = "." }), ".", "clean path", false},
		{"path the manifest", at(func(f *File) { f.Path = ManifestName }), ManifestName, "itself", false},
		{"place relative", at(func(f *File) { f.Place = "usr/bin/kubelet" }), kubelet, "place", false},
		{"place climbs", at(func(f *File) { f.Place = "/usr/bin/../kubelet" }), kubelet, "place", false},
		{"place root", at(func(f *File) { f.Place = "/" }), kubelet, "place", false},
		{"place twice", at(func(f *File) { f.Place = "/usr/bin/kubectl" }), kubelet, "same place", false},
		{"path twice", edit(func(m *Manifest) { m.Files = append(m.Files[:1], m.Files...) }), other, "twice", false},
		{"out of order", edit(func(m *Manifest) { m.Files[0], m.Files[1] = m.Files[1], m.Files[0] }), other, "order", false},
		{"setuid", at(func(f *File) { f.Mode = 0o4755 }), kubelet, "set-id", false},
		{"world-writable", at(func(f *File) { f.Mode = 0o777 }), kubelet, "owner", false},
		{"sha256 short", at(func(f *File) { f.SHA256 = f.SHA256[1:] }), kubelet, "sha256", false},
		{"sha256 upper case", at(func(f *File) { f.SHA256 = strings.Repeat("A", 64) }), kubelet, "sha256", false},
		{"size negative", at(func(f *File) { f.Size = -1 }), kubelet, "size", false},
		{"foreign component", at(func(f *File) { f.Component = "zot" }), kubelet, "zot", false},

		{"surplus file", file("kubelet/zot", func(p string) error { return os.WriteFile(p, nil, 0o644) }), "kubelet/zot", "not in", false},
		{"surplus at the top", file("zot", func(p string) error { return os.WriteFile(p, nil, 0o644) }), "zot", "not in", false},
		{"surplus directory", file("zot", directory), "zot", "not in", false},
		{"surplus link", file("zot", func(p string) error { return os.Symlink("/", p) }), "zot", "not in", false},
		{"directory a link", file("kubelet", func(p string) error {
			real := filepath.Join(filepath.Dir(filepath.Dir(p)), "outside")
			return errors.Join(os.Rename(p, real), os.Symlink(real, p))
		}), "kubelet", "not in", false},
		{"sha256 of another file", at(func(f *File) { f.SHA256 = strings.Repeat("0", 64) }), kubelet, "altered", true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := fixture(t, filepath.Join(t.TempDir(), "bundle"), small)
			test.spoil(t, dir)
			refused(t, dir, test.file, test.reason, test.contents)
		})
	}
}

// TestBadFiles does the same to every file in turn.
func TestBadFiles(t *testing.T) {
	flip := func(at int64) func(string) error {
		return func(p string) error {
			f, err := os.OpenFile(p, os.O_RDWR, 0)
			if err != nil {
				return err
			}
			defer f.Close()
			b := make([]byte, 1)
			if _, err := f.ReadAt(b, at); err != nil {
				return err
			}
			b[0] ^= 0x10
			_, err = f.WriteAt(b, at)
			return err
		}
	}
	ways := []struct {
		name     string
		spoil    func(string) error
		reason   string
		contents bool
	}{
		{"missing", os.Remove, "is missing", false},
		{"truncated", func(p string) error { return os.Truncate(p, 299_999) }, "299999 bytes instead of 300000", false},
		{"longer", func(p string) error { return os.Truncate(p, 300_001) }, "300001 bytes", false},
		{"symbolic link", symlinkToSelf, "symbolic link", false},
		{"dangling link", replaced(func(p string) error { return os.Symlink("/nowhere", p) }), "symbolic link", false},
		{"hard link", hardlinkOutside, "hard-linked", false},
		{"directory", replaced(directory), "is a directory", false},
		{"fifo", replaced(fifo), "not a regular file", false},
		{"device", replaced(device), "not a regular file", false},
		{"first bit altered", flip(0), "altered", true},
		{"a bit altered", flip(150_000), "altered", true},
		{"last bit altered", flip(299_999), "altered", true},
	}
	for _, f := range openFixture(t).Manifest.Files {
		for _, way := range ways {
			t.Run(f.Path+" "+way.name, func(t *testing.T) {
				if way.name == "device" && os.Geteuid() != 0 {
					t.Skip("making a device needs root")
				}
				dir := fixture(t, filepath.Join(t.TempDir(), "bundle"), small)
				if err := way.spoil(filepath.Join(dir, f.Path)); err != nil {
					t.Fatal(err)
				}
				refused(t, dir, f.Path, way.reason, way.contents)
			})
		}
	}
}
