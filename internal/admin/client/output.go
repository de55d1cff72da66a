package client

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/inboxd/inboxd/internal/inbox"
)

// printJSON writes v, indented.
func (c *command) printJSON(v any) int {
	enc := json.NewEncoder(c.env.Stdout)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return c.fail(err)
	}
	return exitOK
}

// table writes rows in columns; the first row is the heading.
func (c *command) table(rows [][]string) int {
	var b bytes.Buffer
	w := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	for _, row := range rows {
		for i, cell := range row {
			row[i] = printable(cell)
		}
		// Every cell, empty ones too: a row with fewer ends the columns.
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	_ = w.Flush() // into memory
	for line := range strings.Lines(b.String()) {
		if _, err := fmt.Fprintln(c.env.Stdout, strings.TrimRight(line, " \n")); err != nil {
			return c.fail(err)
		}
	}
	return exitOK
}

// facts writes names and values; values that are empty are left out.
func (c *command) facts(pairs ...string) {
	w := tabwriter.NewWriter(c.env.Stdout, 0, 8, 2, ' ', 0)
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			fmt.Fprintf(w, "%s:\t%s\n", pairs[i], printable(pairs[i+1]))
		}
	}
	_ = w.Flush() // a closed pipe shows at the next write
}

// printable replaces what a terminal would obey, and line breaks.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '\ufffd'
		}
		return r
	}, s)
}

// printableText is printable that keeps lines.
func printableText(s string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && r != '\t' && !unicode.IsPrint(r) {
			return '\ufffd'
		}
		return r
	}, s)
}

func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

func number[T int | int64 | uint64](n T) string { return fmt.Sprint(n) }

func idOr(id inbox.MessageID, other string) string {
	if id == "" {
		return other
	}
	return string(id)
}

func shorten(s string, n int) string {
	r := []rune(s)
	if len(r) <= n {
		return s
	}
	return string(r[:n-1]) + "…"
}

// progress writes how far something is: over one line on a terminal, and as a
// line now and then elsewhere.
type progress struct {
	w        io.Writer
	terminal bool
	last     time.Time
	width    int
}

const (
	progressOnTerminal = 200 * time.Millisecond
	progressElsewhere  = 5 * time.Second
)

func newProgress(w io.Writer) *progress {
	p := &progress{w: w}
	if f, ok := w.(*os.File); ok {
		fi, err := f.Stat()
		p.terminal = err == nil && fi.Mode()&os.ModeCharDevice != 0
	}
	return p
}

func (p *progress) show(format string, args ...any) {
	every := progressElsewhere
	if p.terminal {
		every = progressOnTerminal
	}
	if !p.last.IsZero() && time.Since(p.last) < every {
		return
	}
	p.last = time.Now()
	line := fmt.Sprintf(format, args...)
	if !p.terminal {
		fmt.Fprintln(p.w, line)
		return
	}
	fmt.Fprintf(p.w, "\r%-*s", p.width, line)
	p.width = len(line)
}

// end leaves the line.
func (p *progress) end() {
	if p.terminal && p.width > 0 {
		fmt.Fprintf(p.w, "\r%*s\r", p.width, "")
	}
}
