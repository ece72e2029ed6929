package components

import (
	"regexp"
	"strings"
	"testing"

	"golang.org/x/mod/semver"
)

func TestSets(t *testing.T) {
	version := regexp.MustCompile(`^[0-9]+\.[0-9]+(\.[0-9]+)?$`)
	last := "v0"
	for _, s := range Sets() {
		for name, v := range map[string]string{
			"Kubernetes": s.Kubernetes, "Containerd": s.Containerd, "CNI": s.CNI,
			"Etcd": s.Etcd, "CoreDNS": s.CoreDNS, "Pause": s.Pause, "Runc": s.Runc,
		} {
			if !version.MatchString(v) {
				t.Errorf("set %s: %s is %q", s.Name, name, v)
			}
		}
		if !strings.HasPrefix(s.Kubernetes, s.Name+".") {
			t.Errorf("set %s has Kubernetes %s", s.Name, s.Kubernetes)
		}
		if semver.Compare(last, "v"+s.Kubernetes) >= 0 {
			t.Errorf("set %s comes after %s", s.Name, last)
		}
		last = "v" + s.Kubernetes
	}
}

func TestLookup(t *testing.T) {
	for _, s := range Sets() {
		if got, err := Lookup(s.Name); err != nil || got != s {
			t.Errorf("Lookup(%q) = %v, %v", s.Name, got, err)
		}
	}
	_, err := Lookup("1.2")
	if err == nil {
		t.Fatal("Lookup(1.2): no error")
	}
	for _, want := range []string{`"1.2"`, "1.35", "1.36"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not name %s", err, want)
		}
	}
}

// TestParts checks that what differs between sets is not shared by them, and
// that a set's parts do not overwrite each other in the cache.
func TestParts(t *testing.T) {
	keys := map[string]string{}
	for _, s := range Sets() {
		names := map[string]bool{}
		for _, p := range parts(s) {
			if names[p.name] {
				t.Errorf("set %s: two parts %s", s.Name, p.name)
			}
			names[p.name] = true
			id := p.name + " " + p.version
			if other, ok := keys[p.key]; ok && other != id {
				t.Errorf("%s and %s have one key", other, id)
			}
			keys[p.key] = id
		}
	}
}
