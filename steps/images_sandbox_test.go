package steps

import (
	"encoding/json"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Before the first step the copy step is still to bring the sandbox image; the
// containerd step by itself insists on it.
func TestSandboxImageIsTheCopyStepsToBring(t *testing.T) {
	n := newImagesNode(t, "registry.k8s.io", "registry.k8s.io/pause:3.10.2")
	n.dumps["1.7.35"] += "\n[plugins.\"io.containerd.grpc.v1.cri\"]\nsandbox_image = 'registry.k8s.io/pause:3.8'\n"
	for first, want := range map[bool]Phase{true: Needed, false: Blocked} {
		n.env.copyFirst = first
		if state, err := checkContainerd(t.Context(), n.env); err != nil || state.Phase != want {
			t.Errorf("%v: %+v %v", first, state, err)
		}
	}
}

// Where kubeadm's work is done and a newer containerd comes, all that is brought is
// what it will make pods with; once it is there, nothing is.
func TestSandboxImageOfANewContainerdAlone(t *testing.T) {
	const sandbox = "registry.k8s.io/pause:3.10.2"
	n := newImagesNode(t, "registry.k8s.io", "registry.k8s.io/kube-proxy:v1.36.3", sandbox)
	n.dumps["1.7.35"] += "\n[plugins.\"io.containerd.grpc.v1.cri\"]\nsandbox_image = 'registry.k8s.io/pause:3.8'\n"
	n.write(kubeletConfig, kubeletConfigAt("v1.36.3")+"evictionHard: {nodefs.available: 1Mi}\n", 0o644)
	n.write("/usr/bin/kubeadm", "new kubeadm", 0o755)
	files, err := kubeletFiles(t.Context(), n.env.Host.FS)
	n.must(err)
	record, err := json.Marshal(upgraded{Schema: 1, Version: "v1.36.3", Mode: modeNode, Files: files})
	n.must(err)
	n.write(upgradedFile, string(record), 0o600)
	if s, err := checkKubeadm(t.Context(), n.env); err != nil || s.Phase != Done {
		t.Fatalf("kubeadm's work is not done: %+v %v", s, err)
	}
	if state, err := n.copies(); err != nil || !slices.Contains(state.Changes, Change{"import", sandbox}) {
		t.Fatalf("%+v %v", state, err)
	}
	if diff := cmp.Diff([]string{sandbox}, slices.Collect(maps.Keys(n.stored()))); diff != "" {
		t.Error(diff)
	}
	if state, err := checkContainerd(t.Context(), n.env); err != nil || state.Phase != Needed {
		t.Errorf("containerd: %+v %v", state, err)
	}
	n.write("/usr/local/bin/containerd", "containerd 2.3.7", 0o755)
	if l, err := lookImages(t.Context(), n.env); err != nil || len(l.needs) > 0 {
		t.Errorf("with the new containerd: %+v %v", l, err)
	}
}
