package cri

import "testing"

// The names are as in containerd's own tests of what it stores.
func TestImageName(t *testing.T) {
	const digest = "@sha256:e6693c20186f837fc393390135d8a598a96a833917917789d63766cab6c59582"
	for ref, want := range map[string]string{
		"pause:3.9":                         "docker.io/library/pause:3.9",
		"myorg/pause":                       "docker.io/myorg/pause:latest",
		"r.example/k8s/pause:3.10" + digest: "r.example/k8s/pause" + digest,
		"r.example:5000/pause:3.10":         "r.example:5000/pause:3.10",
		"index.docker.io/library/pause:3.9": "docker.io/library/pause:3.9",
		"no reference":                      "no reference",
	} {
		if got := ImageName(ref); got != want || ImageName(got) != want {
			t.Errorf("%s: %s, again %s; want %s", ref, got, ImageName(got), want)
		}
	}
}
