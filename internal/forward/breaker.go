package forward

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/inboxd/inboxd/internal/inbox"
)

// BreakerState says whether requests may go.
type BreakerState string

// The states.
const (
	BreakerClosed   BreakerState = "closed"    // requests go, as many as there are slots
	BreakerOpen     BreakerState = "open"      // none goes
	BreakerHalfOpen BreakerState = "half_open" // one goes, to see
)

// cause is why the breaker opened. It decides what counts as recovery.
type cause uint8

const (
	noCause     cause = iota
	unreachable       // connection failures in a row
	failing           // the failure rate
	asked             // the handler's Retry-After
	setup             // answers that blame the set-up
	refusing          // every message refused: the parking guard
)

// breaker hands out the slots for requests, and none while the application
// cannot serve them. It judges every answer. It starts no goroutines and knows
// no sockets: Run of the Forwarder asks the application while it is open.
type breaker struct {
	opts  BreakerOptions
	slots int
	gate  *inbox.Gate
	log   *quietLog

	mu       sync.Mutex
	state    BreakerState
	cause    cause
	why      string
	since    time.Time // of the state
	outage   time.Time // when it left closed; zero while closed
	resume   time.Time // open: the end of the pause
	trips    int       // openings since it was closed last
	epoch    int       // rises with every change of state
	probing  bool      // half open: the one request is under way
	ramp     int       // slots in use after a recovery; slots when warmed up
	starts   []time.Time
	free     []int // indices of starts that are not in use
	inFlight int
	waiting  []*waiter
	changed  chan struct{} // closed at the next change of state

	window      window
	unreachable int      // in a row
	blamed      []string // different messages with a Misconfigured answer in a row
	refused     []string // different messages refused since the last success
}

// pass is the right to send one request.
type pass struct {
	epoch int
	probe bool
	slot  int
	start time.Time
}

type waiter struct {
	ready chan pass // buffered, gets one pass
}

func newBreaker(o BreakerOptions, slots int, gate *inbox.Gate, log *slog.Logger) *breaker {
	b := &breaker{
		opts: o, slots: slots, gate: gate, log: newQuietLog(log),
		state: BreakerClosed, since: time.Now(), ramp: slots,
		starts: make([]time.Time, slots), free: make([]int, slots),
		changed: make(chan struct{}), window: newWindow(o.Window),
	}
	for i := range b.free {
		b.free[i] = slots - 1 - i
	}
	return b
}

// acquire waits for a slot until ctx ends. The pass must be given to judge, or
// to cancel where nothing was sent.
func (b *breaker) acquire(ctx context.Context) (pass, error) {
	if err := ctx.Err(); err != nil {
		return pass{}, context.Cause(ctx)
	}
	b.mu.Lock()
	if len(b.waiting) == 0 && b.mayStart() {
		p := b.start()
		b.mu.Unlock()
		return p, nil
	}
	w := &waiter{ready: make(chan pass, 1)}
	b.waiting = append(b.waiting, w)
	b.mu.Unlock()
	select {
	case p := <-w.ready:
		return p, nil
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case p := <-w.ready: // granted at the same moment
		b.finish(p)
	default:
		b.waiting = slices.DeleteFunc(b.waiting, func(o *waiter) bool { return o == w })
	}
	return pass{}, context.Cause(ctx)
}

func (b *breaker) mayStart() bool {
	switch b.state {
	case BreakerClosed:
		return b.inFlight < b.ramp && len(b.free) > 0
	case BreakerHalfOpen:
		return !b.probing && len(b.free) > 0
	default:
		return false
	}
}

func (b *breaker) start() pass {
	n := len(b.free) - 1
	p := pass{epoch: b.epoch, slot: b.free[n], start: time.Now()}
	b.free = b.free[:n]
	b.starts[p.slot] = p.start
	b.inFlight++
	if b.state == BreakerHalfOpen {
		b.probing = true
		p.probe = true
	}
	return p
}

// finish frees the slot of p and hands it on.
func (b *breaker) finish(p pass) {
	b.starts[p.slot] = time.Time{}
	b.free = append(b.free, p.slot)
	b.inFlight--
	if p.probe && p.epoch == b.epoch {
		b.probing = false
	}
	b.admit()
}

func (b *breaker) admit() {
	for len(b.waiting) > 0 && b.mayStart() {
		b.waiting[0].ready <- b.start()
		b.waiting[0] = nil
		b.waiting = b.waiting[1:]
	}
}

// moveTo changes the state. It never lets requests go by itself.
func (b *breaker) moveTo(s BreakerState) {
	b.state = s
	b.since = time.Now()
	b.epoch++
	b.probing = false
	close(b.changed)
	b.changed = make(chan struct{})
}

// open stops everything. until is the end of the pause, or zero for a pause
// that grows from opening to opening.
func (b *breaker) open(c cause, why string, until time.Time) {
	now := time.Now()
	if b.outage.IsZero() {
		b.outage = now
		b.trips = 0
	}
	if until.IsZero() {
		until = now.Add(b.pause(c))
	}
	b.trips++
	b.cause, b.why, b.resume = c, why, until
	b.window.reset()
	b.unreachable = 0
	b.blamed = b.blamed[:0]
	b.moveTo(BreakerOpen)
	b.log.opened(c, why, until.Sub(now), b.trips == 1)
}

// pause grows with every opening in a row. It has jitter, so that the sidecars
// of a fleet do not ask in step; a probe with a message may cost redeliveries,
// so its pause grows above a minute.
func (b *breaker) pause(c cause) time.Duration {
	first, limit := time.Second, b.opts.MessagePause
	if c == unreachable {
		first, limit = 100*time.Millisecond, b.opts.ConnPause
	}
	d := min(first<<min(b.trips, 20), limit)
	return d*2/3 + rand.N(d/3+1)
}

// halfOpen ends the pause of the opening with number epoch: one request may go.
func (b *breaker) halfOpen(epoch int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.epoch != epoch || b.state != BreakerOpen {
		return
	}
	b.moveTo(BreakerHalfOpen)
	b.gate.Open(inbox.HindranceBreaker)
	b.admit()
}

// close lets requests go again, few at first: the slots double with every round
// of successes.
func (b *breaker) close() {
	down := time.Since(b.outage)
	b.moveTo(BreakerClosed)
	b.log.closed(b.cause, down)
	b.cause, b.why = noCause, ""
	b.outage, b.trips = time.Time{}, 0
	b.ramp = min(2, b.slots)
	b.window.reset()
	b.gate.Open(inbox.HindranceBreaker)
}

// snapshot is what Run needs to know.
type snapshot struct {
	state   BreakerState
	cause   cause
	why     string
	since   time.Time
	outage  time.Time
	resume  time.Time
	epoch   int
	changed <-chan struct{}
}

func (b *breaker) snapshot() snapshot {
	b.mu.Lock()
	defer b.mu.Unlock()
	return snapshot{b.state, b.cause, b.why, b.since, b.outage, b.resume, b.epoch, b.changed}
}

// load returns the requests in flight and how long the oldest has been so.
func (b *breaker) load() (inFlight int, oldest time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, t := range b.starts {
		if !t.IsZero() {
			oldest = max(oldest, time.Since(t))
		}
	}
	return b.inFlight, oldest
}
