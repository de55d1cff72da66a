package config

import (
	"fmt"
	"slices"
	"strings"
)

// Problem is one thing wrong with a configuration.
type Problem struct {
	Path string // YAML path, such as consumers[0].forward.url; "" for the file
	Line int    // 0 where unknown
	Text string
}

func (p Problem) String() string {
	var b strings.Builder
	if p.Path != "" {
		b.WriteString(p.Path + ": ")
	}
	b.WriteString(p.Text)
	if p.Line > 0 {
		fmt.Fprintf(&b, " (line %d)", p.Line)
	}
	return b.String()
}

// Problems is every problem of a configuration, in the order of the file. It
// never shows a secret.
type Problems []Problem

// Error lists the problems, one a line.
func (p Problems) Error() string {
	lines := make([]string, len(p))
	for i := range p {
		lines[i] = p[i].String()
	}
	return strings.Join(lines, "\n")
}

// report collects problems, and where in the file each value stood.
type report struct {
	problems Problems
	lines    map[string]int  // of every path that the file sets
	fromEnv  map[string]bool // paths whose text came from the environment, and is not to be shown
}

func newReport() *report { return &report{lines: map[string]int{}, fromEnv: map[string]bool{}} }

// maxProblems bounds the report: a file with more is not a configuration.
const maxProblems = 200

func (r *report) addf(path, format string, args ...any) {
	if len(r.problems) == maxProblems {
		return
	}
	r.problems = append(r.problems, Problem{Path: path, Line: r.line(path), Text: fmt.Sprintf(format, args...)})
}

// line returns the line of path, or of the nearest thing around it that the file
// has.
func (r *report) line(path string) int {
	for {
		if n, ok := r.lines[path]; ok {
			return n
		}
		cut := strings.LastIndexAny(path, ".[")
		if cut < 0 {
			return 0
		}
		path = path[:cut]
	}
}

// isSet reports whether the file sets path.
func (r *report) isSet(path string) bool {
	_, ok := r.lines[path]
	return ok
}

// failed reports whether path, or something around or inside it, has a problem
// already: what follows from that problem is not worth another one.
func (r *report) failed(path string) bool {
	return slices.ContainsFunc(r.problems, func(p Problem) bool {
		return p.Path == "" || p.Path == path || within(p.Path, path) || within(path, p.Path)
	})
}

// within reports whether path lies inside outer.
func within(path, outer string) bool {
	return outer != "" && len(path) > len(outer) && path[:len(outer)] == outer && (path[len(outer)] == '.' || path[len(outer)] == '[')
}

// err returns the problems in the order of the file, or nil.
func (r *report) err() error {
	if len(r.problems) == 0 {
		return nil
	}
	slices.SortStableFunc(r.problems, func(a, b Problem) int { return a.Line - b.Line })
	return r.problems
}
