// Package batch turns calls that arrive at the same time into one: group commit
// without a timer. Callers block; one of them flushes what has come in since the
// last flush. An idle batcher flushes at once, a busy one in ever larger batches.
package batch

import (
	"context"
	"errors"
	"slices"
	"sync"
)

// ErrClosed is returned by Do after Close.
var ErrClosed = errors.New("batcher is closed")

// Batcher collects items and flushes them together. Safe for concurrent use.
//
// There is no goroutine of its own: the caller that finds no flush under way
// flushes on its own goroutine, and passes the duty on to the first in line
// when it is done. So an uncontended call costs no handover at all, and a
// contended one a single wake-up.
type Batcher[T any] struct {
	limit    int
	flushers int
	flush    func(items []T) error

	mu      sync.Mutex
	active  int        // flushes under way, or duties on their way to a caller
	line    []*call[T] // not empty only while active == flushers
	closed  bool
	drained chan struct{} // closed when closed and active == 0

	calls   sync.Pool
	batches sync.Pool
}

// call is one item in line. Its fields but wake are guarded by the batcher's
// mutex until wake delivers.
type call[T any] struct {
	item  T
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
		drained: make(chan struct{}),
		calls:   sync.Pool{New: func() any { return &call[T]{wake: make(chan duty, 1)} }},
		batches: sync.Pool{New: func() any { return new(load[T]) }},
	}
}

// Do hands item to a flush and returns that flush's error. ctx bounds only the
// wait in line: once a flush has taken the item, Do waits for its end.
func (b *Batcher[T]) Do(ctx context.Context, item T) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return ErrClosed
	}
	if b.active < b.flushers {
		b.active++
		l := b.batch(item)
		b.mu.Unlock()
		return b.run(l)
	}
	c := b.enqueue(item)
	b.mu.Unlock()
	return b.wait(ctx, c)
}

// Put hands item to a flush and does not wait for it; nobody hears of an error.
func (b *Batcher[T]) Put(item T) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.closed:
	case b.active < b.flushers:
		b.active++
		l := b.batch(item)
		go func() { _ = b.run(l) }()
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
	return c
}

func (b *Batcher[T]) wait(ctx context.Context, c *call[T]) error {
	var d duty
	select {
	case d = <-c.wake:
	case <-ctx.Done():
		if b.leave(c) {
			b.put(c)
			return ctx.Err()
		}
		d = <-c.wake // taken already, or made to lead
	}
	err := c.err
	if d == lead {
		b.mu.Lock()
		l := b.batch(c.item)
		b.mu.Unlock()
		err = b.run(l)
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

// batch starts a batch with first and fills it from the line.
func (b *Batcher[T]) batch(first T) *load[T] {
	l := b.batches.Get().(*load[T])
	l.items = append(l.items, first)
	n := min(len(b.line), b.limit-1)
	for _, c := range b.line[:n] {
		l.items = append(l.items, c.item)
		l.calls = append(l.calls, c)
	}
	b.line = slices.Delete(b.line, 0, n)
	return l
}

// run flushes l, passes the duty on and answers the callers in l.
func (b *Batcher[T]) run(l *load[T]) error {
	err := b.flush(l.items)
	// First the duty, then the answers: the next flush need not wait until
	// everybody is awake.
	b.pass()
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
func (b *Batcher[T]) pass() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.line) == 0 {
		b.active--
		if b.closed && b.active == 0 {
			close(b.drained)
		}
		return
	}
	next := b.line[0]
	b.line = slices.Delete(b.line, 0, 1)
	if next.async {
		l := b.batch(next.item)
		b.put(next)
		go func() { _ = b.run(l) }()
		return
	}
	next.wake <- lead
}

func (b *Batcher[T]) put(c *call[T]) {
	var none T
	c.item, c.err, c.async = none, nil, false
	b.calls.Put(c)
}
