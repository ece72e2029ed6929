package image

import (
	"fmt"
	"path"
	"strconv"
)

// The versions of bundle.json that this package reads and writes. A bundle with
// images has one of its own, so that a program that knows nothing of them says
// so.
const (
	SchemaVersion       = 1
	SchemaVersionImages = 2
)

// ManifestName is the file that makes a directory a bundle.
const ManifestName = "bundle.json"

// Manifest is bundle.json.
type Manifest struct {
	SchemaVersion     int         `json:"schemaVersion"`
	Architecture      string      `json:"architecture"`      // as GOARCH spells it
	KubernetesVersion string      `json:"kubernetesVersion"` // "v1.36.3"
	Components        []Component `json:"components"`        // sorted by name
	Files             []File      `json:"files"`             // sorted by path
}

// Component is a thing with a version of its own.
type Component struct {
	Name    string `json:"name"`
	Version string `json:"version"` // "v2.3.7": always with a v
}

// The components' names.
const (
	Containerd = "containerd"
	Runc       = "runc"
	CNIPlugins = "cni-plugins"
	Kubeadm    = "kubeadm"
	Kubelet    = "kubelet"
	Kubectl    = "kubectl"
	// Images are container images, not files of the host: see Bundle.Images.
	Images = "images"
)

// File is one file of a bundle.
type File struct {
	Path      string `json:"path"`      // in the bundle, with slashes, clean, relative
	Component string `json:"component"` // the name of a Component
	Place     string `json:"place"`     // default path on the host, absolute; "" for what is of Images
	SHA256    string `json:"sha256"`    // 64 lower-case hex digits
	Size      int64  `json:"size"`      // bytes
	Mode      Mode   `json:"mode"`
}

// Name is the file's name on the host, such as "containerd-shim-runc-v2".
func (f File) Name() string { return path.Base(f.Place) }

// Mode is a file's permission bits; in JSON an octal string such as "0755".
type Mode uint32

// String is the mode as JSON has it.
func (m Mode) String() string { return fmt.Sprintf("%04o", uint32(m)) }

// MarshalText implements encoding.TextMarshaler.
func (m Mode) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (m *Mode) UnmarshalText(text []byte) error {
	n, err := strconv.ParseUint(string(text), 8, 32)
	if err != nil {
		return fmt.Errorf("mode %q is not an octal number", text)
	}
	*m = Mode(n)
	return nil
}

// size is what all files weigh together.
func (m Manifest) size() int64 {
	var sum int64
	for _, f := range m.Files {
		sum += f.Size
	}
	return sum
}
