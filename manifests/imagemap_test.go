package manifests

import (
	"errors"
	"strings"
	"testing"
)

func testImages() []UpgraderImage {
	return []UpgraderImage{
		{"v1.36.3", "registry.example/upgrader@sha256:" + strings.Repeat("1", 64), []string{"arm64", "amd64"}},
		{"v1.35.4", "registry.example/upgrader@sha256:" + strings.Repeat("2", 64), []string{"amd64"}},
	}
}

func TestImagesRefuses(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*ImagesOptions)
		want   string
	}{
		"none":        {func(o *ImagesOptions) { o.Images = nil }, "no image"},
		"tag":         {func(o *ImagesOptions) { o.Images[0].Reference = "registry.example/upgrader:v1.36.3" }, "not repository@sha256"},
		"short name":  {func(o *ImagesOptions) { o.Images[0].Reference = "upgrader@sha256:" + strings.Repeat("1", 64) }, "not repository@sha256"},
		"no version":  {func(o *ImagesOptions) { o.Images[0].Kubernetes = "" }, "not a version"},
		"bad version": {func(o *ImagesOptions) { o.Images[0].Kubernetes = "v1.36.3+x" }, "IMAGE"},
		"no platform": {func(o *ImagesOptions) { o.Images[0].Architectures = nil }, "no architecture"},
		"twice":       {func(o *ImagesOptions) { o.Images[1].Kubernetes = "v1.36.3" }, "two images bring"},
		"namespace":   {func(o *ImagesOptions) { o.Namespace = "No" }, "--namespace"},
		"name":        {func(o *ImagesOptions) { o.Name = "No" }, "--name"},
	} {
		o := ImagesOptions{Images: testImages()}
		test.change(&o)
		_, err := Images(o)
		var option *OptionError
		if !errors.As(err, &option) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %q", name, err, test.want)
		}
	}
	o := ImagesOptions{Images: append(testImages(), testImages()...)}
	if m, err := Images(o); err != nil || len(m.Data) != 2 {
		t.Errorf("the same image twice: %v, %v", m, err)
	}
}
