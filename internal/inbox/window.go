package inbox

import (
	"context"
	"runtime"
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
	low    int // while so many claimed messages wait, no more are claimed
	group  int // most that are claimed together

	mu       sync.Mutex
	taken    int
	entering queue
	stock    int // claimed or being claimed, and not in the window yet
	claiming queue
	asking   bool // a group is being claimed, or its leader is on the way
	asked    []*waiter
	spare    []*waiter

	common context.Context // of nearly everybody in line; watched once for all of them

	expiry    *time.Timer // one for everybody in line: their holds end in about their order
	expiresAt time.Time
}

// NewWindow returns a window with room for so many requests.
func NewWindow(places int) *Window {
	return &Window{places: places, low: max(2, places), group: min(max(16, 2*places), 256)}
}

// Places returns how many requests the window has room for.
func (w *Window) Places() int { return w.places }

// admit claims c by way of claimAll, together with what else waits for it, and
// takes one place for it where it is new. It waits for both until ctx ends or the
// time is over; the error is about that wait alone, and c may have been claimed
// then. A group is claimed on the goroutine of one of its callers.
func (w *Window) admit(ctx context.Context, c *Claiming, until time.Time, claimAll func([]*Claiming)) error {
	w.mu.Lock()
	p := w.waiter()
	p.n, p.until, p.claim = 1, until, c
	w.claiming.line = append(w.claiming.line, p)
	w.watch(until)
	w.share(ctx, p)
	w.askNext()
	err := w.wait(ctx, p, claimAll)
	w.mu.Unlock()
	return err
}

// share makes ctx, as long as it lives, the common one where there is none, and
// notes where it is that of p. A receive that need not look at ctx as well costs
// a third.
func (w *Window) share(ctx context.Context, p *waiter) {
	if w.common == nil || w.common.Err() != nil {
		w.common = ctx
		context.AfterFunc(ctx, func() { w.ended(ctx) })
	}
	if ctx != w.common {
		return
	}
	p.common = ctx
	if ctx.Err() != nil {
		w.abandon(p, context.Cause(ctx)) // ended may be over
	}
}

// ended abandons everybody whose common context was ctx.
func (w *Window) ended(ctx context.Context) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range slices.Concat(w.claiming.line, w.asked, w.entering.line) {
		if p.common == ctx {
			w.abandon(p, context.Cause(ctx))
		}
	}
}

// enter takes n places, all or none, until ctx ends or the time is over. The
// places are to be given back with leave.
func (w *Window) enter(ctx context.Context, n int, until time.Time) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.entering.line) == 0 && w.taken+n <= w.places {
		w.taken += n
		return nil
	}
	p := w.waiter()
	p.n, p.until = n, until
	w.entering.line = append(w.entering.line, p)
	w.watch(until)
	return w.wait(ctx, p, nil)
}

func (w *Window) leave(n int) {
	w.mu.Lock()
	w.left(n)
	w.mu.Unlock()
}

// left gives n places to those in line.
func (w *Window) left(n int) {
	w.taken -= n
	for len(w.entering.line) > 0 && w.taken+w.entering.line[0].n <= w.places {
		p := w.entering.next()
		w.taken += p.n
		w.decide(p, nil)
	}
	w.askNext()
}

// decide ends the wait of p.
func (w *Window) decide(p *waiter, err error) {
	if p.stocked {
		p.stocked = false
		w.stock--
	}
	p.done, p.err = true, err
	p.poke()
}

// askNext makes the first in line claim a group where it is time for that. A group
// of few is not worth it as long as others wait for the window.
func (w *Window) askNext() {
	waiting := len(w.claiming.line)
	switch {
	case w.asking || waiting == 0:
	case w.stock < (w.low+1)/2, w.stock < w.low && waiting >= w.low/2:
		w.asking = true
		p := w.claiming.line[0]
		p.leads = true
		p.poke()
	}
}

// wait waits until p has been decided on, and does its duty as a leader. The mutex
// is held, and given up meanwhile.
func (w *Window) wait(ctx context.Context, p *waiter, claimAll func([]*Claiming)) error {
	ended := ctx.Done()
	for !p.done {
		if p.leads {
			p.leads = false
			w.ask(claimAll)
			continue
		}
		w.mu.Unlock()
		if p.common != nil {
			<-p.wake
			w.mu.Lock()
			continue
		}
		select {
		case <-p.wake:
			w.mu.Lock()
		case <-ended:
			w.mu.Lock()
			w.abandon(p, context.Cause(ctx))
			ended = nil
		}
	}
	err := p.err
	w.recycle(p)
	return err
}

// ask claims a group. The mutex is held, and given up meanwhile.
func (w *Window) ask(claimAll func([]*Claiming)) {
	// Those that could come in at this moment, and only lack a processor, do so
	// first.
	w.mu.Unlock()
	runtime.Gosched()
	w.mu.Lock()
	n := min(w.group, len(w.claiming.line))
	group := slices.Clone(w.claiming.line[:n])
	w.claiming.drop(n)
	claims := make([]*Claiming, n)
	for i, p := range group {
		p.stocked = true
		claims[i] = p.claim
	}
	w.stock += n
	w.asked = group
	w.mu.Unlock()
	if n > 0 {
		claimAll(claims)
	}
	w.mu.Lock()
	w.asking, w.asked = false, nil
	for _, p := range group {
		switch {
		case p.claim.Err != nil || p.claim.Status != ClaimNew:
			w.decide(p, nil)
		case p.gone != nil:
			w.decide(p, p.gone)
		case len(w.entering.line) == 0 && w.taken+p.n <= w.places:
			w.taken += p.n
			w.decide(p, nil)
		default:
			w.entering.line = append(w.entering.line, p)
		}
	}
	w.askNext()
}

// abandon ends the wait of p with err as soon as that can be. What it was granted
// at the same moment, it gives back.
func (w *Window) abandon(p *waiter, err error) {
	switch {
	case p.done:
		if p.err == nil && (p.claim == nil || p.claim.Status == ClaimNew && p.claim.Err == nil) {
			p.err = err
			w.left(p.n)
		}
	case w.entering.remove(p):
		w.decide(p, err)
		w.left(0) // it may have kept smaller ones waiting
	case w.claiming.remove(p):
		w.decide(p, err)
		if p.leads {
			p.leads, w.asking = false, false
			w.askNext()
		}
	default: // with the ledger
		p.gone = err
	}
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
		for _, p := range slices.Clone(q.line) {
			if now.Before(p.until) {
				w.watch(p.until)
			} else {
				w.abandon(p, context.DeadlineExceeded)
			}
		}
	}
}

// waiter is somebody in line. Its fields but wake are guarded by the window's
// mutex.
type waiter struct {
	n       int
	until   time.Time
	claim   *Claiming       // nil where nothing is to be claimed
	stocked bool            // counted in the stock
	leads   bool            // claims the next group
	common  context.Context // its context, where that is watched for it; nil where not
	gone    error           // why it waits no longer, while the ledger has its claim
	done    bool
	err     error
	wake    chan struct{} // buffered: poking never blocks
}

func (p *waiter) poke() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

func (w *Window) waiter() *waiter {
	n := len(w.spare) - 1
	if n < 0 {
		return &waiter{wake: make(chan struct{}, 1)}
	}
	p := w.spare[n]
	w.spare = w.spare[:n]
	return p
}

func (w *Window) recycle(p *waiter) {
	select {
	case <-p.wake:
	default:
	}
	*p = waiter{wake: p.wake}
	w.spare = append(w.spare, p)
}

// queue is a line, the first at the front.
type queue struct{ line []*waiter }

// next takes the first out.
func (q *queue) next() *waiter {
	p := q.line[0]
	q.drop(1)
	return p
}

// drop takes the first n out.
func (q *queue) drop(n int) {
	clear(q.line[:n])
	if q.line = q.line[n:]; len(q.line) == 0 {
		q.line = nil
	}
}

func (q *queue) remove(p *waiter) bool {
	i := slices.Index(q.line, p)
	if i < 0 {
		return false
	}
	q.line = slices.Delete(q.line, i, i+1)
	return true
}
