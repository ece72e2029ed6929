package image

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/mod/semver"
)

func TestCheckVersions(t *testing.T) {
	tests := []struct {
		kubernetes, containerd, runc string
		rules                        []string
	}{
		{"v1.36.3", "v2.3.7", "v1.4.3", nil},
		{"v1.36.0", "v2.2.0", "v1.3.3", nil},
		{"v1.36.0-rc.1", "v2.2.0", "v1.3.3", nil},
		{"v1.36.3", "v2.4.0", "v1.5.1", nil},
		{"v1.36.3", "v3.0.0", "v2.0.0", nil}, // nobody knows
		{"v1.36.3", "v1.6.39", "v1.2.8", []string{"containerd-for-kubernetes"}},
		{"v1.36.3", "v1.7.35", "v1.2.8", []string{"containerd-for-kubernetes"}},
		{"v1.36.3", "v2.1.8", "v1.3.3", []string{"containerd-for-kubernetes"}},
		{"v1.36.3", "v2.2.0-rc.1", "v1.3.3", []string{"containerd-for-kubernetes"}},
		{"v1.36.3", "v1.5.18", "v1.2.8", []string{"cri-v1", "containerd-for-kubernetes"}},
		{"v1.26.0", "v1.5.18", "", []string{"cri-v1", "containerd-for-kubernetes"}},
		{"v1.25.9", "v1.5.18", "", nil}, // not judged
		{"v1.35.4", "v1.7.35", "v1.1.5+ds1", nil},
		{"v1.35.4", "v1.7.27", "v1.2.8", []string{"containerd-for-kubernetes"}},
		{"v1.35.4", "v2.0.7", "v1.3.3", []string{"containerd-for-kubernetes"}},
		{"v1.35.4", "v2.1.5-k3s1", "v1.3.3", nil},
		{"v1.35.4", "v2.3.7", "v1.4.3", nil},
		{"v1.29.0", "v2.3.7", "v1.4.3", nil},
		{"v1.37.0", "v2.2.9", "v1.3.6", []string{"containerd-for-kubernetes"}},
		{"v1.38.0", "v2.3.0", "v1.4.3", nil}, // at least what the last known one needs
		{"v1.38.0", "v2.2.9", "v1.4.3", []string{"containerd-for-kubernetes"}},
		{"v1.36.3", "v2.3.7", "v1.4.1", []string{"runc-for-containerd"}},
		{"v1.36.3", "v2.3.7", "v1.1.12", []string{"runc-for-containerd", "runc-breakouts"}},
		{"v1.36.3", "v2.2.0", "v1.3.2", []string{"runc-for-containerd", "runc-breakouts"}},
		{"v1.34.2", "v2.1.3", "v1.3.2", []string{"runc-breakouts"}},
		{"v1.34.2", "v1.7.28", "v1.2.7", []string{"runc-breakouts"}},
		{"v1.34.2", "v1.7.28", "v1.2.8", nil},
		{"v1.34.2", "v1.7.28", "v1.4.0-rc.2", []string{"runc-breakouts"}},
		{"v1.34.2", "v1.7.28", "v1.4.0-rc.3", nil},
		{"v1.34.2", "v1.7.28", "v1.1.3+ds1", []string{"runc-for-containerd"}},
		{"v1.36.3", "v2.9.0", "v1.5.0", []string{"runc-for-containerd"}},
		{"v1.36.3", "", "", nil},
		{"", "v2.3.7", "", nil},
	}
	for _, test := range tests {
		t.Run(test.kubernetes+" "+test.containerd+" "+test.runc, func(t *testing.T) {
			err := CheckVersions(test.kubernetes, test.containerd, test.runc)
			var rules []string
			for _, e := range joined(err) {
				var broken *VersionSetError
				if !errors.As(e, &broken) || broken.Advice() == "" || !strings.Contains(broken.Error(), broken.Rule) {
					t.Fatalf("not a rule, or without advice: %#v", e)
				}
				rules = append(rules, broken.Rule)
			}
			if diff := cmp.Diff(test.rules, rules); diff != "" {
				t.Errorf("%v\n%s", err, diff)
			}
		})
	}
}

func joined(err error) []error {
	var all interface{ Unwrap() []error }
	if errors.As(err, &all) {
		return all.Unwrap()
	}
	return nil
}

// The tables are looked up by order.
func TestRuleTables(t *testing.T) {
	inOrder := func(name string, all ...string) {
		for i, v := range all {
			if !semver.IsValid(v) || i > 0 && semver.Compare(all[i-1], v) >= 0 {
				t.Errorf("%s: %s is out of order", name, v)
			}
		}
	}
	var kubernetes, containerd []string
	for _, r := range containerdFor() {
		kubernetes = append(kubernetes, r.kubernetes)
		inOrder(r.kubernetes, r.first...)
	}
	for _, r := range runcFor() {
		containerd = append(containerd, r.containerd)
	}
	inOrder("Kubernetes", kubernetes...)
	inOrder("containerd", containerd...)
	inOrder("runc", runcBreakouts()...)
}
