//go:build e2e

package e2e

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// runbook is what TestRecovery tries.
const runbook = "../../docs/recovery.md"

// section is a heading of the runbook with something to type. One below another
// has that one's symptoms unless it has its own.
type section struct {
	title    string
	symptoms []string // lines; … stands for anything
	commands string
	above    *section // nil for one of the first level
}

// readRunbook are its sections with a block of commands, in their order.
func readRunbook(t *testing.T) []section {
	t.Helper()
	data, err := os.ReadFile(runbook)
	must(t, err)
	now := &section{}
	all := []*section{now}
	block := "" // the kind of block that we are in
	for line := range strings.Lines(string(data)) {
		text := strings.TrimSuffix(line, "\n")
		kind, fence := strings.CutPrefix(text, "```")
		switch {
		case fence && block == "":
			block = kind
			if kind != "text" && kind != "sh" || kind == "sh" && now.commands != "" {
				t.Errorf("%s: a block of %q: there may be several of text, and one of sh", now.title, kind)
			}
		case fence:
			block = ""
		case block == "sh":
			now.commands += line
		case block == "text":
			now.symptoms = append(now.symptoms, text)
		case strings.HasPrefix(text, "## "):
			now = &section{title: text[3:]}
			all = append(all, now)
		case strings.HasPrefix(text, "### "):
			above := now.above
			if above == nil {
				above = now
			}
			now = &section{title: text[4:], above: above}
			all = append(all, now)
		}
	}
	var typed []section
	for _, s := range all {
		if s.symptoms == nil && s.above != nil {
			s.symptoms = s.above.symptoms
		}
		if s.commands != "" {
			typed = append(typed, *s)
		}
	}
	return typed
}

// shows fails unless each symptom's line is in the text.
func (s section) shows(t *testing.T, text string) {
	t.Helper()
	for _, line := range s.symptoms {
		pattern := strings.ReplaceAll(regexp.QuoteMeta(line), "…", ".*")
		if !regexp.MustCompile(pattern).MatchString(text) {
			t.Errorf("the runbook says\n%s\nand what shows is\n%s", line, text)
		}
	}
}

// sameTitles fails unless each section has a case, and each case a section, in
// the same order.
func sameTitles(t *testing.T, sections []section, cases []recovery) {
	t.Helper()
	named := map[string]bool{}
	for _, c := range cases {
		named[c.title] = true
	}
	for _, s := range sections {
		if !named[s.title] {
			t.Errorf("%s: %q is not tried", runbook, s.title)
		}
		delete(named, s.title)
	}
	for title := range named {
		t.Errorf("%s has no section %q with a block of commands", runbook, title)
	}
	if t.Failed() {
		t.FailNow()
	}
}
