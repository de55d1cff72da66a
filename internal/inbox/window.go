package inbox

import (
	"context"
	"slices"
	"sync"
	"time"
)

// Window bounds the requests whose 2xx is not durable yet: those in flight and
// those answered but not recorded. A crash repeats at most so many requests.
//
// It also paces what comes before. While enough claimed messages wait for their
// turn, others are not claimed one by one as they come in, but in groups, which
// cost the store little more than one alone. Claimed messages are few then, too:
// what waits unclaimed is still free for other replicas.
//
// Everybody is served in the order of their coming. Safe for concurrent use.
type Window struct {
	places int
	low    int // claimed messages that must be waiting, or more are claimed
	group  int // claims let go together

	mu       sync.Mutex
	taken    int
	entering queue
	stock    int // claimed or being claimed, and not in the window yet
	claiming queue
	spare    []*waiter

	expiry    *time.Timer // one for everybody in line: their holds end in about their order
	expiresAt time.Time
}

// NewWindow returns a window with room for so many requests.
func NewWindow(places int) *Window {
	return &Window{places: places, low: max(2, places), group: min(max(16, 2*places), 256)}
}

// Places returns how many requests the window has room for.
func (w *Window) Places() int { return w.places }

// reserve waits until it is time to claim, until ctx ends or the time is over.
// An urgent claim waits for nothing: its message has waited for something else
// already, and those behind it may have been acked but for it. After nil, unclaim
// must follow.
func (w *Window) reserve(ctx context.Context, until time.Time, urgent bool) error {
	w.mu.Lock()
	if urgent || len(w.claiming.line) == 0 && w.stock < w.low {
		w.stock++
		w.mu.Unlock()
		return nil
	}
	return w.wait(ctx, &w.claiming, 1, until, w.unclaimed)
}

// unclaim ends what reserve began: no request follows, or it has its place.
func (w *Window) unclaim() {
	w.mu.Lock()
	w.unclaimed(1)
	w.mu.Unlock()
}

func (w *Window) unclaimed(n int) {
	w.stock -= n
	if w.stock >= w.low {
		return
	}
	for range min(w.group, len(w.claiming.line)) {
		w.stock++
		w.claiming.next()
	}
}

// enter takes n places, all or none, until ctx ends or the time is over. The
// places are to be given back with leave.
func (w *Window) enter(ctx context.Context, n int, until time.Time) error {
	w.mu.Lock()
	if len(w.entering.line) == 0 && w.taken+n <= w.places {
		w.taken += n
		w.mu.Unlock()
		return nil
	}
	return w.wait(ctx, &w.entering, n, until, w.left)
}

func (w *Window) leave(n int) {
	w.mu.Lock()
	w.left(n)
	w.mu.Unlock()
}

func (w *Window) left(n int) {
	w.taken -= n
	for len(w.entering.line) > 0 && w.taken+w.entering.line[0].n <= w.places {
		w.taken += w.entering.line[0].n
		w.entering.next()
	}
}

// wait stands in line. The mutex is held, and given up. undo gives back what was
// granted at the moment of giving up.
func (w *Window) wait(ctx context.Context, q *queue, n int, until time.Time, undo func(n int)) error {
	p := w.waiter()
	p.n, p.until = n, until
	q.line = append(q.line, p)
	w.watch(until)
	w.mu.Unlock()
	var err error
	select {
	case err = <-p.ready:
		w.mu.Lock()
	case <-ctx.Done():
		err = context.Cause(ctx)
		w.mu.Lock()
		if q.remove(p) {
			w.left(0) // it may have kept smaller ones waiting
		} else if <-p.ready == nil { // granted at the same moment
			undo(n)
		}
	}
	w.spare = append(w.spare, p)
	w.mu.Unlock()
	return err
}

// watch makes sure that somebody whose time is over at until does not wait longer.
func (w *Window) watch(until time.Time) {
	switch {
	case w.expiry == nil:
		w.expiry = time.AfterFunc(time.Until(until), w.expire)
	case w.expiresAt.IsZero() || until.Before(w.expiresAt):
		w.expiry.Reset(time.Until(until))
	default:
		return
	}
	w.expiresAt = until
}

// expire turns away everybody whose time is over.
func (w *Window) expire() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.expiresAt = time.Time{}
	now := time.Now()
	for _, q := range []*queue{&w.entering, &w.claiming} {
		q.line = slices.DeleteFunc(q.line, func(p *waiter) bool {
			over := !now.Before(p.until)
			if over {
				p.ready <- context.DeadlineExceeded
			}
			return over
		})
		for _, p := range q.line {
			w.watch(p.until)
		}
	}
	w.left(0)
}

func (w *Window) waiter() *waiter {
	n := len(w.spare) - 1
	if n < 0 {
		return &waiter{ready: make(chan error, 1)}
	}
	p := w.spare[n]
	w.spare = w.spare[:n]
	return p
}

// waiter is somebody in line. ready is buffered: granting never blocks.
type waiter struct {
	n     int
	until time.Time
	ready chan error
}

// queue is a line, the first at the front.
type queue struct{ line []*waiter }

// next lets the first go.
func (q *queue) next() {
	p := q.line[0]
	q.line[0] = nil
	if q.line = q.line[1:]; len(q.line) == 0 {
		q.line = nil
	}
	p.ready <- nil
}

func (q *queue) remove(p *waiter) bool {
	i := slices.Index(q.line, p)
	if i < 0 {
		return false
	}
	q.line = slices.Delete(q.line, i, i+1)
	return true
}
