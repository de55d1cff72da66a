package forward

import "time"

const windowParts = 10

// window counts requests and failures of the last while, in parts of a tenth.
type window struct {
	part  time.Duration
	start time.Time
	parts [windowParts]struct {
		number          int64
		total, failures int
	}
}

func newWindow(d time.Duration) window {
	return window{part: max(d/windowParts, 1), start: time.Now()}
}

func (w *window) add(failed bool) {
	n := w.now()
	p := &w.parts[n%windowParts]
	if p.number != n {
		p.number, p.total, p.failures = n, 0, 0
	}
	p.total++
	if failed {
		p.failures++
	}
}

func (w *window) now() int64 { return int64(time.Since(w.start) / w.part) }

func (w *window) sum() (total, failures int) {
	n := w.now()
	for i := range w.parts {
		if p := &w.parts[i]; p.number > n-windowParts {
			total += p.total
			failures += p.failures
		}
	}
	return total, failures
}

func (w *window) reset() {
	w.parts = [windowParts]struct {
		number          int64
		total, failures int
	}{}
}
