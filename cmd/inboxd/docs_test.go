package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// A page that says which test proves a promise is worth nothing where the test
// has another name by now.
func TestPageOfFailureModesNamesTestsThatExist(t *testing.T) {
	t.Parallel()
	exists := map[string]bool{}
	definition := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		raw, err := os.ReadFile(path)
		for _, m := range definition.FindAllStringSubmatch(string(raw), -1) {
			exists[m[1]] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile("../../docs/failure-modes.md")
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`(Test\\w+)`").FindAllStringSubmatch(string(raw), -1)
	if len(named) == 0 {
		t.Error("docs/failure-modes.md names no test")
	}
	for _, m := range named {
		if !exists[m[1]] {
			t.Errorf("docs/failure-modes.md names %s, which is no test", m[1])
		}
	}
}

func TestLinksBetweenPagesLeadSomewhere(t *testing.T) {
	t.Parallel()
	link := regexp.MustCompile(`\]\(([^)#: ]+)(?:#([^)]*))?\)`)
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range append(pages, "../../README.md", "../../CONTRIBUTING.md", "../../examples/README.md") {
		raw, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(string(raw), -1) {
			target := filepath.Join(filepath.Dir(page), m[1])
			there, err := os.ReadFile(target)
			if info, serr := os.Stat(target); serr == nil && info.IsDir() {
				continue
			}
			if err != nil {
				t.Errorf("%s: got the link %s, want one to a file that is there", page, m[1])
			} else if m[2] != "" && !hasHeading(string(there), m[2]) {
				t.Errorf("%s: got the link %s#%s, want one to a heading that is there", page, m[1], m[2])
			}
		}
	}
}

// hasHeading reports whether a heading of the page gets this anchor.
func hasHeading(text, anchor string) bool {
	notInAnchor := regexp.MustCompile(`[^\w\- ]`)
	for line := range strings.Lines(text) {
		heading, ok := strings.CutPrefix(strings.TrimLeft(line, "#"), " ")
		if !ok || !strings.HasPrefix(line, "#") {
			continue
		}
		heading = notInAnchor.ReplaceAllString(strings.ToLower(strings.TrimSpace(heading)), "")
		if strings.ReplaceAll(heading, " ", "-") == anchor {
			return true
		}
	}
	return false
}
