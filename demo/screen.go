package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// screen writes for people: on a terminal the progress stays in its place,
// elsewhere it becomes a line now and then.
type screen struct {
	w        io.Writer
	terminal bool

	steps    int
	progress string    // what stands in the last, unfinished line
	waiting  bool      // the last line is one of wait
	lastLine time.Time // of a progress line, where there is no terminal
}

const stepCount = 6

func newScreen(f *os.File) *screen {
	info, err := f.Stat()
	terminal := err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb"
	return &screen{w: f, terminal: terminal}
}

// step opens the next part of the demo.
func (s *screen) step(name string) {
	s.steps++
	s.line("%d/%d  %s", s.steps, stepCount, name)
}

func (s *screen) line(format string, a ...any) {
	s.endProgress()
	fmt.Fprintf(s.w, format+"\n", a...)
}

// Write lets the output of other programs through.
func (s *screen) Write(p []byte) (int, error) {
	s.endProgress()
	return s.w.Write(p)
}

// show replaces the progress on a terminal, and prints it once a second
// elsewhere.
func (s *screen) show(text string) {
	switch {
	case s.terminal:
		fmt.Fprintf(s.w, "\r\033[K%s", text)
		s.progress = text
	case time.Since(s.lastLine) >= time.Second:
		s.showLast(text)
	}
}

// showLast shows a progress that nothing follows, on a terminal or not.
func (s *screen) showLast(text string) {
	if s.terminal {
		s.show(text)
		s.endProgress()
		return
	}
	fmt.Fprintln(s.w, text)
	s.lastLine = time.Now()
}

// wait says what is being waited for, until the next line takes its place.
func (s *screen) wait(text string) {
	if s.terminal {
		fmt.Fprintf(s.w, "\r\033[K%s", text)
		s.waiting = true
	}
}

// endProgress keeps what the progress said last.
func (s *screen) endProgress() {
	if s.waiting {
		fmt.Fprint(s.w, "\r\033[K")
		s.waiting = false
	}
	if s.progress != "" {
		fmt.Fprintln(s.w)
		s.progress = ""
	}
}

// bar draws done of total, width characters wide.
func bar(done, total, width int) string {
	if total <= 0 {
		total = 1
	}
	filled := max(0, min(width, done*width/total))
	return strings.Repeat("█", filled) + strings.Repeat("░", width-filled)
}

// thousands writes 1234567 as 1,234,567.
func thousands(n int) string {
	s := fmt.Sprint(n)
	first := 0
	if n < 0 {
		first = 1
	}
	for i := len(s) - 3; i > first; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
