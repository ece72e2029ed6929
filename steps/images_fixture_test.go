package steps

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"
	fakediscovery "k8s.io/client-go/discovery/fake"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"sigs.k8s.io/yaml"

	"github.com/node-upgrader/node-upgrader/hostexec"
	"github.com/node-upgrader/node-upgrader/image"
	"github.com/node-upgrader/node-upgrader/steps/cri"
	"github.com/node-upgrader/node-upgrader/steps/cri/critest"
)

// imagesNode is a worker whose cluster has its images in a repository, and whose
// bundle's kubeadm tells the names there.
type imagesNode struct {
	*containerdNode
	effects []string
}

func newImagesNode(t *testing.T, repository string, brought ...string) *imagesNode {
	t.Helper()
	n := &imagesNode{containerdNode: newContainerdNode(t)}
	n.dumps["2.3.7"] += "\n[plugins.'io.containerd.cri.v1.images']\nsnapshotter = 'native'\n[plugins.'io.containerd.cri.v1.images'.pinned_images]\nsandbox = 'registry.k8s.io/pause:3.10.2'\n"
	n.env.Node = Node{Name: testNode, Role: Worker}
	n.bring(brought...)
	api := fake.NewClientset(&corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kubeadm-config"},
		Data: map[string]string{"ClusterConfiguration": "apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\nkubernetesVersion: v1.35.4\nimageRepository: " +
			repository + "\n"},
	})
	api.Discovery().(*fakediscovery.FakeDiscovery).FakedServerVersion = &version.Info{GitVersion: "v1.36.3"}
	n.env.Kube = func(context.Context) (kubernetes.Interface, error) { return api, nil }
	n.env.Staging = Staging{Upgrader: filepath.Join(n.env.Bundle.Dir, "bundle.json"), BootID: "boot"}
	n.env.Watch = n
	n.write("/var/lib/kubelet/config.yaml", "evictionHard: {nodefs.available: 1Mi}\n", 0o600)
	n.commands.On("kubeadm config images list --config /dev/stdin", listImages)
	n.commands.On("kubeadm config images list --kubernetes-version v1.36.3", func(hostexec.Command) (string, error) {
		return namesIn("registry.k8s.io", "v1.36.3"), nil
	})
	return n
}

func (n *imagesNode) Before(e hostexec.Effect) error {
	if strings.HasSuffix(e.Op, "-image") {
		n.effects = append(n.effects, e.String())
	}
	return nil
}
func (n *imagesNode) After(hostexec.Effect, error) {}

// listImages is kubeadm: it takes repository and version from its configuration.
func listImages(c hostexec.Command) (string, error) {
	data, err := io.ReadAll(c.Stdin)
	if err != nil {
		return "", err
	}
	var config struct{ Kind, KubernetesVersion, ImageRepository string }
	if err := yaml.Unmarshal(data, &config); err != nil || config.Kind != "ClusterConfiguration" {
		return "", fmt.Errorf("kubeadm: %s: %w", data, err)
	}
	return namesIn(config.ImageRepository, config.KubernetesVersion), nil
}

func namesIn(repository, v string) string {
	coredns := "/coredns:v1.14.2"
	if repository == "registry.k8s.io" {
		coredns = "/coredns" + coredns
	}
	return strings.Join([]string{repository + "/kube-apiserver:" + v, repository + "/kube-proxy:" + v, repository + coredns, repository + "/pause:3.10.2", repository + "/etcd:3.6.8-0", ""}, "\n")
}

// bring puts images and kubeadm into the bundle, and writes its bundle.json.
func (n *imagesNode) bring(names ...string) {
	b := n.env.Bundle
	m := &b.Manifest
	m.SchemaVersion, m.Architecture, m.KubernetesVersion = image.SchemaVersion, goruntime.GOARCH, "v1.36.3"
	m.Components = append(m.Components, image.Component{Name: image.Kubeadm, Version: "v1.36.3"})
	n.add(image.Kubeadm, "bin/kubeadm", "/usr/bin/kubeadm", []byte("new kubeadm"), 0o755)
	if len(names) > 0 {
		m.SchemaVersion = image.SchemaVersionImages
		m.Components = append(m.Components, image.Component{Name: image.Images, Version: "v1.36.3"})
		dir := filepath.Join(n.t.TempDir(), "layout")
		path, err := layout.Write(dir, empty.Index)
		n.must(err)
		for _, name := range names {
			n.must(path.AppendImage(imageNamed(n.t, name), layout.WithAnnotations(map[string]string{"io.containerd.image.name": name})))
		}
		n.must(filepath.WalkDir(dir, func(file string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			rel, _ := filepath.Rel(dir, file)
			data, err := os.ReadFile(file)
			n.add(image.Images, "images/"+rel, "", data, 0o644)
			return err
		}))
	}
	slices.SortFunc(m.Components, func(x, y image.Component) int { return strings.Compare(x.Name, y.Name) })
	slices.SortFunc(m.Files, func(x, y image.File) int { return strings.Compare(x.Path, y.Path) })
	data, err := json.Marshal(m)
	n.must(err)
	n.must(os.WriteFile(filepath.Join(b.Dir, image.ManifestName), data, 0o644))
	opened, err := image.Open(b.Dir)
	n.must(err)
	n.env.Bundle = opened
}

func (n *imagesNode) add(component, name, place string, data []byte, mode image.Mode) {
	to := filepath.Join(n.env.Bundle.Dir, name)
	n.must(os.MkdirAll(filepath.Dir(to), 0o755))
	n.must(os.WriteFile(to, data, os.FileMode(mode)))
	n.env.Bundle.Manifest.Files = append(n.env.Bundle.Manifest.Files, image.File{
		Path: name, Component: component, Place: place, SHA256: sha256Of(data), Size: int64(len(data)), Mode: mode,
	})
}

func imageNamed(t *testing.T, name string) v1.Image {
	t.Helper()
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	img, err := mutate.ConfigFile(img, &v1.ConfigFile{OS: "linux", Architecture: goruntime.GOARCH, RootFS: v1.RootFS{Type: "layers"}})
	if err == nil {
		img, err = mutate.AppendLayers(img, static.NewLayer([]byte(name), types.OCIUncompressedLayer))
	}
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// copies works through the copy step as the runner does.
func (n *imagesNode) copies() (State, error) {
	state, err := checkCopy(n.t.Context(), n.env)
	if err != nil || state.Phase != Needed {
		return state, err
	}
	return state, runCopy(n.t.Context(), n.env)
}

// stored are containerd's images by name, with the pin.
func (n *imagesNode) stored() map[string]cri.Image {
	var s map[string]cri.Image
	n.runtime.Change(func(state *critest.State) { s = maps.Clone(state.Stored) })
	return s
}
