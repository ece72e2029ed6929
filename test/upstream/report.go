package upstream

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// A spec is what ginkgo's JSON report says of one.
type spec struct {
	Name   string // of its containers and its own, as critest prints it
	State  string // passed, skipped, failed, …
	Reason string // of a failure or of the spec's own decision to be skipped
}

// parseReport reads the specs of the one suite that critest is, without its
// benchmarks and without what surrounds the specs, unless that failed.
func parseReport(data []byte) ([]spec, error) {
	var suites []struct {
		SpecialSuiteFailureReasons []string
		SpecReports                []struct {
			ContainerHierarchyTexts    []string
			LeafNodeType, LeafNodeText string
			State                      string
			Failure                    struct {
				Message  string
				Location struct {
					FileName   string
					LineNumber int
				}
			}
		}
	}
	if err := json.Unmarshal(data, &suites); err != nil {
		return nil, fmt.Errorf("critest's report: %w", err)
	}
	var specs []spec
	for _, suite := range suites {
		for _, r := range suite.SpecReports {
			s := spec{Name: strings.Join(append(r.ContainerHierarchyTexts, r.LeafNodeText), " "), State: r.State, Reason: r.Failure.Message}
			if r.Failure.Location.FileName != "" {
				s.Reason += fmt.Sprintf(" (%s:%d)", r.Failure.Location.FileName, r.Failure.Location.LineNumber)
			}
			if r.LeafNodeType != "It" {
				if s.State == "passed" {
					continue
				}
				s.Name = r.LeafNodeType
			}
			if !strings.Contains(s.Name, "benchmark") {
				specs = append(specs, s)
			}
		}
		for _, reason := range suite.SpecialSuiteFailureReasons {
			if reason != "" && !slices.ContainsFunc(specs, spec.failed) {
				specs = append(specs, spec{Name: "suite", State: "failed", Reason: reason})
			}
		}
	}
	return specs, nil
}

func (s spec) failed() bool { return s.State != "passed" && s.State != "skipped" }

// A tally is the number of specs by their end.
type tally struct{ Passed, Failed, Skipped int }

func count(specs []spec) tally {
	var t tally
	for _, s := range specs {
		switch s.State {
		case "passed":
			t.Passed++
		case "skipped":
			t.Skipped++
		default:
			t.Failed++
		}
	}
	return t
}

// judge returns what is wrong: with the specs, or with the table of exclusions.
func judge(specs []spec, table []Exclusion) []string {
	var wrong []string
	found := map[string]int{}
	for _, s := range specs {
		i := slices.IndexFunc(table, func(x Exclusion) bool { return x.Spec == s.Name })
		if i >= 0 {
			found[s.Name]++
		}
		switch {
		case s.failed():
			wrong = append(wrong, fmt.Sprintf("%s: %s: %s", s.State, s.Name, s.Reason))
		case s.State == "skipped" && i < 0:
			wrong = append(wrong, fmt.Sprintf("skipped, and not in the table: %s: %s", s.Name, s.Reason))
		case s.State == "passed" && i >= 0 && !table[i].Itself:
			wrong = append(wrong, fmt.Sprintf("passed, and is in the table: %s", s.Name))
		}
	}
	for _, x := range table {
		if found[x.Spec] == 0 {
			wrong = append(wrong, fmt.Sprintf("in the table, and critest has no such spec: %s", x.Spec))
		}
	}
	return wrong
}

// skipFlags are the arguments that exclude what critest does not skip itself.
func skipFlags(table []Exclusion) []string {
	var flags []string
	for _, x := range table {
		if !x.Itself {
			flags = append(flags, "--ginkgo.skip="+regexp.QuoteMeta(x.Spec)+"$")
		}
	}
	return flags
}
