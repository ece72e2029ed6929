package image

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"golang.org/x/mod/semver"
)

// VersionSetError says that versions do not fit together, and by which rule.
type VersionSetError struct {
	Rule   string // its name in docs/bundles.md
	Reason string
	Hint   string
}

func (e *VersionSetError) Error() string { return e.Reason + " (rule " + e.Rule + ")" }

// Advice is what to do about it.
func (e *VersionSetError) Advice() string { return e.Hint }

// containerdFor is which releases of containerd its project recommends for a
// minor version of Kubernetes: in each series the first that will do.
//
// https://github.com/containerd/containerd/blob/v2.4.0/RELEASES.md#kubernetes-support;
// up to 1.31 the same file of v2.0.7, v2.2.0 and v1.7.35.
func containerdFor() []struct {
	kubernetes string
	first      []string
} {
	return []struct {
		kubernetes string
		first      []string
	}{
		{"v1.26", []string{"v1.6.15", "v1.7.0"}},
		{"v1.27", []string{"v1.6.15", "v1.7.0"}},
		{"v1.28", []string{"v1.6.15", "v1.7.0"}},
		{"v1.29", []string{"v1.6.27", "v1.7.11"}},
		{"v1.30", []string{"v1.6.28", "v1.7.13", "v2.0.0"}},
		{"v1.31", []string{"v1.6.34", "v1.7.20", "v2.0.0", "v2.1.0"}},
		{"v1.32", []string{"v1.6.36", "v1.7.24", "v2.0.1", "v2.1.0"}},
		{"v1.33", []string{"v1.6.36", "v1.7.24", "v2.0.4", "v2.1.0"}},
		{"v1.34", []string{"v1.6.39", "v1.7.28", "v2.0.6", "v2.1.3"}},
		{"v1.35", []string{"v1.7.28", "v2.1.5", "v2.2.0"}},
		{"v1.36", []string{"v2.2.0", "v2.3.0"}},
		{"v1.37", []string{"v2.3.0", "v2.4.0"}},
	}
}

// runcFor is the runc that a series of containerd began with, in its
// script/setup/runc-version. "We recommend using a version of runc that's equal
// to or higher": https://github.com/containerd/containerd/blob/main/docs/RUNC.md
func runcFor() []struct{ containerd, first string } {
	return []struct{ containerd, first string }{
		{"v1.7", "v1.1.4"},
		{"v2.0", "v1.2.1"},
		{"v2.1", "v1.3.0"},
		{"v2.2", "v1.3.3"},
		{"v2.3", "v1.4.2"},
		{"v2.4", "v1.5.1"},
	}
}

// runcBreakouts are the releases of runc that closed the last known ways out of
// a container, CVE-2025-31133, CVE-2025-52565 and CVE-2025-52881.
//
// https://github.com/opencontainers/runc/security/advisories/GHSA-9493-h29p-rfm2
// and the two that it links. CVE-2026-41579 (1.3.6, 1.4.3) is of low severity
// and no reason to refuse.
func runcBreakouts() []string { return []string{"v1.2.8", "v1.3.3", "v1.4.0-rc.3"} }

// CheckVersions tells whether versions fit together, as far as their projects
// say it: every rule that is broken is a *VersionSetError, joined. A version
// that is empty is not judged, nor is Kubernetes before 1.26.
func CheckVersions(kubernetes, containerd, runc string) error {
	var broken []error
	for _, err := range []error{
		checkCRI(kubernetes, containerd), checkContainerd(kubernetes, containerd),
		checkRunc(containerd, runc), checkBreakouts(runc),
	} {
		if err != nil {
			broken = append(broken, err)
		}
	}
	return errors.Join(broken...)
}

// checkCRI: the kubelet speaks CRI v1 alone since 1.26, and containerd since 1.6.
// https://kubernetes.io/blog/2022/11/18/upcoming-changes-in-kubernetes-1-26/
func checkCRI(kubernetes, containerd string) error {
	if !older("v1.25.999", kubernetes) || !older(containerd, "v1.6.0") {
		return nil
	}
	return &VersionSetError{
		"cri-v1",
		fmt.Sprintf("Kubernetes %s speaks CRI v1 only, which containerd %s does not know", kubernetes, containerd),
		"take containerd 1.6 or newer; " + advise(kubernetes),
	}
}

func checkContainerd(kubernetes, containerd string) error {
	table := containerdFor()
	if kubernetes == "" || containerd == "" || older(kubernetes, table[0].kubernetes) {
		return nil
	}
	row := table[len(table)-1] // a newer Kubernetes needs at least what the last known one does
	for _, r := range table {
		if r.kubernetes == series(kubernetes) {
			row = r
		}
	}
	newest := row.first[len(row.first)-1]
	for _, first := range row.first {
		if series(first) == series(containerd) && !older(containerd, first) {
			return nil
		}
	}
	if series(containerd) != series(newest) && older(newest, containerd) {
		return nil
	}
	return &VersionSetError{
		"containerd-for-kubernetes",
		fmt.Sprintf("containerd %s is not for Kubernetes %s: its project names %s for %s",
			containerd, kubernetes, list(row.first), row.kubernetes),
		advise(kubernetes),
	}
}

func checkRunc(containerd, runc string) error {
	table := runcFor()
	if containerd == "" || runc == "" || older(containerd, table[0].containerd) {
		return nil
	}
	row := table[len(table)-1]
	for _, r := range table {
		if r.containerd == series(containerd) {
			row = r
		}
	}
	if !older(runc, row.first) {
		return nil
	}
	return &VersionSetError{
		"runc-for-containerd",
		fmt.Sprintf("runc %s is too old for containerd %s, which was made with %s", runc, containerd, row.first),
		"take runc " + row.first + " or newer",
	}
}

func checkBreakouts(runc string) error {
	// Distributions mend older versions: theirs cannot be told by number.
	if runc == "" || core(runc) != runc {
		return nil
	}
	fixed := runcBreakouts()
	for _, first := range fixed {
		if series(first) == series(runc) && !older(runc, first) {
			return nil
		}
	}
	if newest := fixed[len(fixed)-1]; series(newest) != series(runc) && older(newest, runc) {
		return nil
	}
	return &VersionSetError{
		"runc-breakouts",
		fmt.Sprintf("runc %s lets containers out (CVE-2025-31133, CVE-2025-52565, CVE-2025-52881): fixed in %s", runc, list(fixed)),
		"take a runc in which it is fixed, the newest of its series",
	}
}

func advise(kubernetes string) string {
	for _, r := range containerdFor() {
		if r.kubernetes == series(kubernetes) {
			return fmt.Sprintf("for Kubernetes %s take containerd %s", r.kubernetes, list(r.first))
		}
	}
	return "see Kubernetes support in containerd's RELEASES.md"
}

// list writes the first releases of their series: "v2.2.0+ or v2.3.0+".
func list(first []string) string { return strings.Join(first, "+ or ") + "+" }

func series(v string) string { return semver.MajorMinor(core(v)) }

// older compares versions; nothing is older or newer than an unknown one.
func older(a, b string) bool {
	if a == "" || b == "" {
		return false
	}
	return semver.Compare(core(a), core(b)) < 0
}

var preRelease = regexp.MustCompile(`^-(alpha|beta|dev|pre|rc)`)

// core is a version without what a distribution or vendor added to it:
// "v1.1.5+ds1" and "v2.1.5-k3s1" are v1.1.5 and v2.1.5, "v1.4.0-rc.3" stays.
func core(v string) string {
	if i := strings.IndexAny(v, "+~"); i > 0 {
		v = v[:i]
	}
	if i := strings.IndexByte(v, '-'); i > 0 && !preRelease.MatchString(v[i:]) {
		v = v[:i]
	}
	return v
}
