package verify

import (
	"context"
	"errors"
	"math"
	"strconv"
	"strings"
	"time"
)

// scale says what one effect looks like in the view. The first message that is
// processed sets it.
type scale struct {
	view  view
	unit  float64 // by how much one effect changes a number
	text  string  // what a text is after one effect, with marks for ID and number
	known bool
}

// other counts a text that is neither the one before nor the one after an
// effect.
const other = -1

// watch is the view of some messages since a moment.
type watch struct {
	s      *scale
	msgs   []message
	before []reading
	odd    string // the text that was neither, where effects counted other
}

var errTextView = errors.New("the view shows a text that is not about one message: put {{id}} or {{n}} into it, or let it show a number")

// watch reads the view of msgs. Messages whose view is the same are read once.
func (s *scale) watch(ctx context.Context, msgs ...message) (*watch, error) {
	w := &watch{s: s}
	seen := make(map[string]bool)
	for _, m := range msgs {
		at := m.fill(s.view.template())
		if seen[at] {
			continue
		}
		seen[at] = true
		r, err := s.view.read(ctx, m)
		if err != nil {
			return nil, err
		}
		if r.isText && !keyed(s.view) {
			return nil, errTextView
		}
		w.msgs = append(w.msgs, m)
		w.before = append(w.before, r)
	}
	return w, nil
}

// effects reads the view again and counts the effects since watch. Before the
// scale is known it counts 1 for any change.
func (w *watch) effects(ctx context.Context) (float64, error) {
	var sum float64
	for i, m := range w.msgs {
		now, err := w.s.view.read(ctx, m)
		if err != nil {
			return 0, err
		}
		if now.isText && !keyed(w.s.view) {
			return 0, errTextView
		}
		n := w.s.count(m, w.before[i], now)
		if n == other {
			w.odd = now.text
			return other, nil
		}
		sum += n
	}
	return sum, nil
}

func (s *scale) count(m message, before, now reading) float64 {
	switch {
	case before == now:
		return 0
	case !s.known:
		return 1
	case now.isText || before.isText:
		if mark(m, now.text) == s.text {
			return 1
		}
		return other
	}
	return (now.number - before.number) / s.unit
}

// calibrate takes what w shows now as one effect.
func (w *watch) calibrate(ctx context.Context) error {
	m := w.msgs[0]
	now, err := w.s.view.read(ctx, m)
	if err != nil {
		return err
	}
	w.s.unit, w.s.text, w.s.known = now.number-w.before[0].number, mark(m, now.text), true
	return nil
}

// mark makes the texts of two messages comparable.
func mark(m message, text string) string {
	return strings.NewReplacer(m.id, "{{id}}", m.n, "{{n}}", m.fingerprint(), "{{fingerprint}}").Replace(text)
}

// settle waits until want effects are there, at most wait, and then a quiet
// time more, in which effects too many show up.
func (w *watch) settle(ctx context.Context, want float64, wait, quiet time.Duration) (float64, error) {
	end := time.Now().Add(wait)
	for {
		n, err := w.effects(ctx)
		if err != nil {
			return 0, err
		}
		if n >= want || n == other || time.Now().After(end) {
			break
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return 0, err
		}
	}
	if err := pause(ctx, quiet); err != nil {
		return 0, err
	}
	return w.effects(ctx)
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func effectString(n float64) string {
	if n == other {
		return "other"
	}
	return strconv.FormatFloat(math.Round(n*100)/100, 'f', -1, 64)
}
