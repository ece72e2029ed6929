package steps

import (
	"strings"
	"testing"
)

// A disk of containerd's that is too small is found before anything is imported.
func TestImagesNeedRoom(t *testing.T) {
	n := newImagesNode(t, "registry.k8s.io", "registry.k8s.io/pause:3.10.2")
	l, err := lookImages(t.Context(), n.env)
	n.must(err)
	for i, need := range l.needs {
		if need.brought == nil {
			continue
		}
		if blocks, err := l.room(n.env); err != nil || len(blocks) > 0 {
			t.Errorf("%v %v", blocks, err)
		}
		l.needs[i].brought.Blobs[0].Size = 1 << 50
		if blocks, err := l.room(n.env); err != nil || len(blocks) != 1 || !strings.Contains(blocks[0].Reason, "disk: /var/lib/containerd has") {
			t.Errorf("%v %v", blocks, err)
		}
	}
}

// What each for itself would have room for, has none together on one file system.
func TestStagingAndImagesShareADisk(t *testing.T) {
	n := newImagesNode(t, "registry.k8s.io", "registry.k8s.io/pause:3.10.2")
	l, err := lookImages(t.Context(), n.env)
	n.must(err)
	free, err := n.env.Host.FS.Free(StateDir)
	n.must(err)
	due := l.due()
	if len(due) != 1 || due[0].brought == nil {
		t.Fatalf("%+v", due)
	}
	due[0].brought.Blobs[0].Size = int64(free.Bytes / 10 * 3) // and unpacked as much again
	staging := demand{dir: StateDir, what: "staging", bytes: free.Bytes / 10 * 6, hint: "h"}
	room := func(l imagesLook, others ...demand) State {
		t.Helper()
		s := State{Phase: Needed}
		n.must(l.state(n.env, &s, others...))
		return s
	}
	for name, s := range map[string]State{"staging": room(imagesLook{root: l.root}, staging), "images": room(l)} {
		if len(s.Blocks) > 0 {
			t.Errorf("%s alone: %v", name, s.Blocks)
		}
	}
	s := room(l, staging)
	if s.Phase != Blocked || len(s.Blocks) != 1 || !strings.Contains(s.Blocks[0].Reason, "staging (up to") || !strings.Contains(s.Blocks[0].Reason, " and importing the bundle's images (up to") ||
		!strings.Contains(s.Blocks[0].Hint, "h; crictl rmi --prune") {
		t.Errorf("together: %+v", s)
	}
}

// The copy step asks for both at once.
func TestCopyNeedsRoomToStage(t *testing.T) {
	n := newImagesNode(t, "registry.k8s.io", "registry.k8s.io/pause:3.10.2")
	n.write(kubeletConfig, "evictionHard: {nodefs.available: 1Ei}\n", 0o644)
	s, err := checkCopy(t.Context(), n.env)
	if err != nil || len(s.Blocks) != 1 {
		t.Fatalf("%+v %v", s, err)
	}
	for _, want := range []string{"disk: /var/lib/upgrader has", "staging the bundle and keeping what it replaces (up to", "importing the bundle's images", "under which the kubelet evicts pods"} {
		if !strings.Contains(s.Blocks[0].Reason, want) {
			t.Errorf("%s, want %q", s.Blocks[0].Reason, want)
		}
	}
}
