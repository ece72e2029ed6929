package upstream

import (
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const report = `[{
  "SpecialSuiteFailureReasons": [%REASON%],
  "SpecReports": [
    {"LeafNodeType": "BeforeSuite", "State": "%BEFORE%", "Failure": {"Message": "no socket"}},
    {"ContainerHierarchyTexts": ["[k8s.io] A", "when b"], "LeafNodeType": "It", "LeafNodeText": "c [Conformance]", "State": "passed"},
    {"ContainerHierarchyTexts": ["[k8s.io] A"], "LeafNodeType": "It", "LeafNodeText": "d", "State": "skipped",
     "Failure": {"Message": "no kernel", "Location": {"FileName": "a.go", "LineNumber": 7}}},
    {"ContainerHierarchyTexts": ["[k8s.io] A"], "LeafNodeType": "It", "LeafNodeText": "e", "State": "timedout", "Failure": {"Message": "late"}},
    {"ContainerHierarchyTexts": ["[k8s.io] A"], "LeafNodeType": "It", "LeafNodeText": "benchmark about f", "State": "skipped"}
  ]}]`

func TestParseReport(t *testing.T) {
	specs, err := parseReport([]byte(strings.NewReplacer("%BEFORE%", "passed", "%REASON%", "").Replace(report)))
	if err != nil {
		t.Fatal(err)
	}
	want := []spec{
		{Name: "[k8s.io] A when b c [Conformance]", State: "passed"},
		{Name: "[k8s.io] A d", State: "skipped", Reason: "no kernel (a.go:7)"},
		{Name: "[k8s.io] A e", State: "timedout", Reason: "late"},
	}
	if diff := cmp.Diff(want, specs); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(tally{Passed: 1, Failed: 1, Skipped: 1}, count(specs)); diff != "" {
		t.Error(diff)
	}
	specs, err = parseReport([]byte(strings.NewReplacer("%BEFORE%", "failed", "%REASON%", `"Suite Timeout"`).Replace(report)))
	if err != nil || specs[0] != (spec{Name: "BeforeSuite", State: "failed", Reason: "no socket"}) || len(specs) != 4 {
		t.Errorf("a failure before the specs: %v, %v", specs, err)
	}
	if _, err := parseReport([]byte("[{")); err == nil {
		t.Error("half a report is no error")
	}
	specs, err = parseReport([]byte(`[{"SpecialSuiteFailureReasons": ["interrupted"]}]`))
	if err != nil || len(specs) != 1 || !specs[0].failed() {
		t.Errorf("a suite that failed as a whole: %v, %v", specs, err)
	}
}

func TestJudge(t *testing.T) {
	table := []Exclusion{{Spec: "ours"}, {Spec: "its own", Itself: true}}
	ours, own := spec{Name: "ours", State: "skipped"}, spec{Name: "its own", State: "skipped"}
	for name, test := range map[string]struct {
		specs []spec
		want  string // part of the only complaint; none if empty
	}{
		"as in the table":      {specs: []spec{ours, own, {Name: "a", State: "passed"}}},
		"it does run here":     {specs: []spec{ours, {Name: "its own", State: "passed"}}},
		"a failure":            {specs: []spec{ours, own, {Name: "a", State: "failed", Reason: "why"}}, want: "failed: a: why"},
		"a panic":              {specs: []spec{ours, own, {Name: "a", State: "panicked"}}, want: "panicked: a"},
		"not in the table":     {specs: []spec{ours, own, {Name: "a", State: "skipped", Reason: "why"}}, want: "not in the table: a: why"},
		"it could have run":    {specs: []spec{{Name: "ours", State: "passed"}, own}, want: "is in the table: ours"},
		"a spec that is gone":  {specs: []spec{ours}, want: "no such spec: its own"},
		"a failure of its own": {specs: []spec{ours, {Name: "its own", State: "failed"}}, want: "failed: its own"},
	} {
		t.Run(name, func(t *testing.T) {
			wrong := judge(test.specs, table)
			if test.want == "" && len(wrong) == 0 {
				return
			}
			if len(wrong) != 1 || !strings.Contains(wrong[0], test.want) {
				t.Errorf("judge: %q, want one with %q", wrong, test.want)
			}
		})
	}
}

func TestExclusions(t *testing.T) {
	seen := map[string]bool{}
	for _, x := range Exclusions() {
		if x.Spec == "" || x.Reason == "" || seen[x.Spec] {
			t.Errorf("no name, no reason, or twice: %+v", x)
		}
		seen[x.Spec] = true
	}
	flags := skipFlags([]Exclusion{{Spec: "[k8s.io] A b"}, {Spec: "c", Itself: true}})
	if len(flags) != 1 {
		t.Fatalf("flags %q", flags)
	}
	expression, _ := strings.CutPrefix(flags[0], "--ginkgo.skip=")
	for name, want := range map[string]bool{"CRI validation [k8s.io] A b": true, "CRI validation [k8s.io] A b and more": false} {
		if got := regexp.MustCompile(expression).MatchString(name); got != want {
			t.Errorf("%s matches %q: %v", flags[0], name, got)
		}
	}
}
