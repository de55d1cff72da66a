// Package batch turns calls that arrive at the same time into one: group commit.
// Callers block; one of them flushes what has come in since the last flush. An
// idle batcher flushes at once, a busy one in ever larger batches.
package batch

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"time"
)

// ErrClosed is returned by Do after Close.
var ErrClosed = errors.New("batcher is closed")

// Batcher collects items and flushes them together. Safe for concurrent use.
//
// There is no goroutine of its own: the caller that finds no flush under way
// flushes on its own goroutine, and passes the duty on to the first in line
// when it is done. So an uncontended call costs no handover at all, and a
// contended one a single wake-up.
//
// Where flushes are fast, batches would stay small and each message would pay for
// a flush of its own. So a batch waits for as many callers as were seen side by
// side last time, but never beyond a short while after the start of the flush
// before it. Calls one after the other are never held up.
type Batcher[T any] struct {
	limit    int
	flushers int
	flush    func(items []T) error

	mu      sync.Mutex
	active  int        // flushes under way, or duties on their way to a caller
	line    []*call[T] // not empty only while active == flushers or somebody gathers
	started time.Time  // of the latest flush
	want    int        // callers that a batch waits for
	company chan struct{}
	gathers bool // one of the active waits for company
	closed  bool
	drained chan struct{} // closed when closed and active == 0

	calls   sync.Pool
	batches sync.Pool
}

// call is one item in line, or several that go together. Its fields but wake are
// guarded by the batcher's mutex until wake delivers.
type call[T any] struct {
	item  T
	rest  []T
	err   error
	wake  chan duty // buffered: waking never blocks the one who flushes
	async bool      // nobody waits
}

// duty is what a call in line is woken for.
type duty uint8

const (
	answered duty = iota // flushed by another caller
	lead                 // first in line: flush yourself and the others
)

const (
	// pace is the shortest time between the starts of two flushes where more
	// callers are on their way.
	pace = time.Millisecond
	// enough callers make a batch that is worth a flush at any pace.
	enough = 64
)

// load is one batch: the items, and whom to answer. calls[0] is the one who
// flushes and has no call of its own where it never stood in line.
type load[T any] struct {
	items []T
	calls []*call[T]
}

// New returns a batcher that calls flush with at most limit items at a time, in
// at most flushers calls at once. flush answers each item by what it writes into
// it; an error that it returns is the answer to all items of the batch. It must
// not keep the slice.
func New[T any](limit, flushers int, flush func(items []T) error) *Batcher[T] {
	return &Batcher[T]{
		limit: limit, flushers: flushers, flush: flush,
		want: 1, company: make(chan struct{}, 1), drained: make(chan struct{}),
		calls:   sync.Pool{New: func() any { return &call[T]{wake: make(chan duty, 1)} }},
		batches: sync.Pool{New: func() any { return new(load[T]) }},
	}
}

// Do hands item to a flush and returns that flush's error. ctx bounds only the
// wait in line: once a flush has taken the item, Do waits for its end.
func (b *Batcher[T]) Do(ctx context.Context, item T) error { return b.do(ctx, item, nil) }

// DoAll is Do for several items that go in one flush. They count as one caller,
// since who brings its own company need not wait for any. Above the batcher's
// limit they go all the same; none do nothing. The slice is not kept.
func (b *Batcher[T]) DoAll(ctx context.Context, items []T) error {
	if len(items) == 0 {
		return nil
	}
	return b.do(ctx, items[0], items[1:])
}

func (b *Batcher[T]) do(ctx context.Context, item T, rest []T) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return ErrClosed
	}
	if b.active < b.flushers && !b.gathers {
		b.active++
		return b.lead(item, rest)
	}
	c := b.enqueue(item)
	c.rest = rest
	b.mu.Unlock()
	return b.wait(ctx, c)
}

// Put hands item to a flush and does not wait for it; nobody hears of an error.
func (b *Batcher[T]) Put(item T) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.closed:
	case b.active < b.flushers && !b.gathers:
		b.active++
		go b.leadAlone(item)
	default:
		b.enqueue(item).async = true
	}
}

// Close lets the calls in line finish, refuses new ones, and returns when the
// last flush has ended.
func (b *Batcher[T]) Close() {
	b.mu.Lock()
	if !b.closed {
		b.closed = true
		if b.active == 0 {
			close(b.drained)
		}
	}
	b.mu.Unlock()
	<-b.drained
}

func (b *Batcher[T]) enqueue(item T) *call[T] {
	c := b.calls.Get().(*call[T])
	c.item = item
	b.line = append(b.line, c)
	if b.gathers && len(b.line)+1 >= b.want {
		select {
		case b.company <- struct{}{}:
		default:
		}
	}
	return c
}

// lead flushes item with rest, and what is in line. The mutex is held, and given up.
func (b *Batcher[T]) lead(item T, rest []T) error {
	// Callers that could come in at this moment, and only lack a processor, do so
	// first: a flush that does not block would keep it from them.
	b.mu.Unlock()
	runtime.Gosched()
	b.mu.Lock()
	if wait := pace - time.Since(b.started); len(b.line)+1 < b.want && wait > 0 && !b.gathers {
		b.gather(wait)
	}
	l := b.batch(item, rest)
	b.spread()
	b.mu.Unlock()
	return b.run(l)
}

func (b *Batcher[T]) leadAlone(item T) {
	b.mu.Lock()
	_ = b.lead(item, nil)
}

// gather waits for company. Where less comes than was wanted, less will be
// wanted.
func (b *Batcher[T]) gather(wait time.Duration) {
	select {
	case <-b.company: // of an earlier time
	default:
	}
	b.gathers = true
	b.mu.Unlock()
	t := time.NewTimer(wait)
	select {
	case <-b.company:
	case <-t.C:
	}
	t.Stop()
	b.mu.Lock()
	b.gathers = false
}

// spread gives a second flusher what a full batch has left in line.
func (b *Batcher[T]) spread() {
	if len(b.line) > 0 && b.active < b.flushers {
		b.active++
		b.call()
	}
}

func (b *Batcher[T]) wait(ctx context.Context, c *call[T]) error {
	var d duty
	if ctx.Done() == nil {
		d = <-c.wake // a third of the price
	} else {
		select {
		case d = <-c.wake:
		case <-ctx.Done():
			if b.leave(c) {
				b.put(c)
				return ctx.Err()
			}
			d = <-c.wake // taken already, or made to lead
		}
	}
	err := c.err
	if d == lead {
		b.mu.Lock()
		err = b.lead(c.item, c.rest)
	}
	b.put(c)
	return err
}

// leave takes c out of the line and reports whether it was still there.
func (b *Batcher[T]) leave(c *call[T]) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	i := slices.Index(b.line, c)
	if i < 0 {
		return false
	}
	b.line = slices.Delete(b.line, i, i+1)
	return true
}

// batch starts a batch with first and rest and fills it from the line.
func (b *Batcher[T]) batch(first T, rest []T) *load[T] {
	l := b.batches.Get().(*load[T])
	l.items = append(append(l.items, first), rest...)
	n := 0
	for ; n < len(b.line) && len(l.items)+1+len(b.line[n].rest) <= b.limit; n++ {
		c := b.line[n]
		l.items = append(append(l.items, c.item), c.rest...)
		l.calls = append(l.calls, c)
	}
	b.line = slices.Delete(b.line, 0, n)
	b.started = time.Now()
	return l
}

// run flushes l, passes the duty on and answers the callers in l.
func (b *Batcher[T]) run(l *load[T]) error {
	err := b.flush(l.items)
	// First the duty, then the answers: the next flush need not wait until
	// everybody is awake.
	b.pass(1 + len(l.calls))
	for _, c := range l.calls {
		if c.async {
			b.put(c)
			continue
		}
		c.err = err
		c.wake <- answered
	}
	clear(l.items)
	clear(l.calls)
	l.items, l.calls = l.items[:0], l.calls[:0]
	b.batches.Put(l)
	return err
}

// pass makes the first in line flush next, or ends the duty where nobody waits.
// flushed is how many callers are about to get their answers: they and those in
// line were there side by side.
func (b *Batcher[T]) pass(flushed int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.want = min(flushed+len(b.line), enough, b.limit)
	if len(b.line) > 0 && !b.gathers {
		b.call()
		return
	}
	b.active--
	if b.closed && b.active == 0 {
		close(b.drained)
	}
}

// call gives a duty to the first in line.
func (b *Batcher[T]) call() {
	next := b.line[0]
	b.line = slices.Delete(b.line, 0, 1)
	if next.async {
		item := next.item
		b.put(next)
		go b.leadAlone(item)
		return
	}
	next.wake <- lead
}

func (b *Batcher[T]) put(c *call[T]) {
	var none T
	c.item, c.rest, c.err, c.async = none, nil, nil, false
	b.calls.Put(c)
}
