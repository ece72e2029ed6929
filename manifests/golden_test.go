package manifests

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
)

var update = flag.Bool("update", false, "rewrite the golden files")

const testImage = "registry.example/node-upgrader/upgrader@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

// full has every option that can be had together.
func full() PodOptions {
	return PodOptions{
		Node: "worker-1.example", Image: testImage, Namespace: "upgrades", Name: "upgrade-worker-1",
		RunID: "v1.36.3-2", DrainFirst: true,
		ImagePullPolicy: "Never", ImagePullSecrets: []string{"mirror"},
		Kubeadm: KubeadmOptions{
			Patches: "/etc/kubernetes/patches", CertificateRenewal: new(false), EtcdUpgrade: new(true),
			IgnorePreflightErrors: []string{"CreateJob", "Swap"},
		},
		Drain: &DrainOptions{
			DeleteEmptyDirData: true, Force: true, IgnoreDaemonSets: false, DisableEviction: true,
			GracePeriod: 30 * time.Second, Timeout: 5 * time.Minute, PodSelector: "app!=database",
			SkipWaitForDelete: time.Minute,
		},
	}
}

func TestGolden(t *testing.T) {
	minimal := PodOptions{Node: "node-1", Image: testImage}
	single := func(o runtime.Object, err error) ([]runtime.Object, error) { return []runtime.Object{o}, err }
	pod := func(o PodOptions) ([]runtime.Object, error) { p, err := Pod(o); return single(p, err) }
	job := func(o PodOptions) ([]runtime.Object, error) { j, err := Job(o); return single(j, err) }
	partial := minimal
	partial.Steps = []string{"copy", "containerd", "cni-plugins"}

	for _, tt := range []struct {
		file string
		make func() ([]runtime.Object, error)
	}{
		{"pod.yaml", func() ([]runtime.Object, error) { return pod(minimal) }},
		{"pod-full.yaml", func() ([]runtime.Object, error) { return pod(full()) }},
		{"pod-steps.yaml", func() ([]runtime.Object, error) { return pod(partial) }},
		{"job.yaml", func() ([]runtime.Object, error) { return job(minimal) }},
		{"rbac.yaml", func() ([]runtime.Object, error) { return RBAC(RBACOptions{}) }},
		{"images.yaml", func() ([]runtime.Object, error) {
			m, err := Images(ImagesOptions{Images: testImages()})
			return single(m, err)
		}},
		{"rbac-disable-eviction.yaml", func() ([]runtime.Object, error) {
			return RBAC(RBACOptions{Namespace: "kube-system", DisableEviction: true})
		}},
	} {
		t.Run(tt.file, func(t *testing.T) {
			objects, err := tt.make()
			if err != nil {
				t.Fatal(err)
			}
			got, err := Render(objects...)
			if err != nil {
				t.Fatal(err)
			}
			golden := filepath.Join("testdata", tt.file)
			if *update {
				if err := os.WriteFile(golden, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("%s differs (-want +got); run with -update when that is meant:\n%s", golden, diff)
			}
			if diff := cmp.Diff(objects, decode(t, got)); diff != "" {
				t.Errorf("decoded, it is not what was rendered (-want +got):\n%s", diff)
			}
		})
	}
}

// decode reads documents as strictly as an API server with strict field
// validation: an unknown or a repeated field fails.
func decode(t *testing.T, data []byte) []runtime.Object {
	t.Helper()
	decoder := serializer.NewCodecFactory(clientscheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	var objects []runtime.Object
	for document := range bytes.SplitSeq(data, []byte("---\n")) {
		data, err := utilyaml.ToJSON(document)
		if err != nil {
			t.Fatal(err)
		}
		object, _, err := decoder.Decode(data, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		objects = append(objects, object)
	}
	return objects
}

func TestDecodeIsStrict(t *testing.T) {
	decoder := serializer.NewCodecFactory(clientscheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	_, _, err := decoder.Decode([]byte(`{"apiVersion":"v1","kind":"Pod","spec":{"hostPid":true}}`), nil, nil)
	if err == nil {
		t.Error("a misspelled field was accepted: the golden test proves nothing")
	}
}

func TestRenderWantsKind(t *testing.T) {
	pod, err := Pod(PodOptions{Node: "n", Image: testImage})
	if err != nil {
		t.Fatal(err)
	}
	pod.Kind = ""
	if _, err := Render(pod); err == nil {
		t.Error("an object without kind was rendered")
	}
}
