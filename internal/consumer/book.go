package consumer

import (
	"math"
	"sync"
	"time"

	"github.com/inboxd/inboxd/internal/inbox"
)

// held is a delivery between its arrival and the word to the broker.
type held struct {
	inbox.Delivery
	tag    uint64
	size   int64 // of the body, as it counts in hand
	result inbox.Result

	prev, next *held
	settled    bool
	at         time.Time // of an ack
}

// book keeps the deliveries of one session. Tags come in the order of their
// numbers, so that the list of open ones is sorted by itself and its head tells
// up to where one ack with `multiple` may reach. Neither list ever holds more
// than the prefetch. Safe for concurrent use.
type book struct {
	mu          sync.Mutex
	first, last *held // delivered, not settled
	open        int
	acks        []*held // settled with Ack, the broker not told yet
	returns     []*held // settled otherwise, the broker not told yet
	oldest      time.Time
	holding     bool // returns wait: they would come straight back
	closing     bool // no more deliveries; flush at once
	expired     bool // handlers still running are not waited for any more
	dead        bool // the session is lost: nothing can be told any more

	tag      uint64 // of the last delivery
	prefetch int    // of the registration in force
	base     uint64 // the last tag before it
	out      int    // its deliveries that the broker was not told about
	busy     bool   // they were half the prefetch since the last look at the load
	total    int    // settled since then
	frozen   bool   // nothing is told

	fresh int           // acks since the last look
	limit int           // as many of them are looked at at once
	most  int           // as many acks in all are not kept back any longer
	wait  time.Duration // how long an ack waits for company
	wake  chan struct{} // there is something to do
}

// ackWait is how long an ack waits for others to go with it while other
// deliveries are in hand. It costs prefetch meanwhile, hence so little.
const ackWait = 2 * time.Millisecond

// strayWait is how long an ack above an open delivery waits for that one, to go
// with it: requests do not end in the order in which they began, and an ack of
// its own for nearly each of them is what costs the broker most.
const strayWait = 100 * time.Millisecond

func newBook(prefetch int) *book {
	b := &book{wait: ackWait, wake: make(chan struct{}, 1)}
	b.setPrefetch(prefetch)
	return b
}

// setPrefetch begins a new registration, whose deliveries come after the tag base.
func (b *book) setPrefetch(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.prefetch, b.limit, b.most = n, max(1, n/4), max(1, n/2)
	b.base, b.out = b.tag, 0
	b.busy, b.total = false, 0
}

// freeze keeps everything from the broker until thaw. It reports whether the
// prefetch is used up then, so that the broker has nothing on the way.
func (b *book) freeze() (full bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.frozen = true
	return b.out >= b.prefetch
}

// thaw ends freeze and hold.
func (b *book) thaw() {
	b.mu.Lock()
	b.frozen, b.holding = false, false
	b.mu.Unlock()
	b.poke()
}

// load returns what happened since the last call.
func (b *book) load() (open, settled int, busy bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	open, settled, busy = b.open, b.total, b.busy
	b.total, b.busy = 0, 2*b.out >= b.prefetch
	return open, settled, busy
}

// add takes a delivery in. Calls must come in the order of the tags, from one
// goroutine.
func (b *book) add(h *held) {
	b.mu.Lock()
	defer b.mu.Unlock()
	h.prev = b.last
	if b.last == nil {
		b.first = h
	} else {
		b.last.next = h
	}
	b.last = h
	b.open++
	b.tag = h.tag
	b.out++
	b.busy = b.busy || 2*b.out >= b.prefetch
}

// settle closes h with r. It reports false where nothing will be told to the
// broker: the session is lost, or h was settled before.
func (b *book) settle(h *held, r inbox.Result) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if h.settled {
		return false
	}
	h.settled, h.result = true, r
	b.total++
	b.unlink(h)
	if b.dead {
		return false
	}
	if r.Outcome.Decision() != inbox.Ack {
		b.returns = append(b.returns, h)
		b.poke()
		return true
	}
	h.at = time.Now()
	if len(b.acks) == 0 {
		b.oldest = h.at
	}
	b.acks = append(b.acks, h)
	b.fresh++
	// The first one wakes the settler to start its clock, later ones only when
	// they end the waiting.
	if len(b.acks) == 1 || b.due() {
		b.poke()
	}
	return true
}

func (b *book) unlink(h *held) {
	if h.prev == nil {
		b.first = h.next
	} else {
		h.prev.next = h.next
	}
	if h.next == nil {
		b.last = h.prev
	} else {
		h.next.prev = h.prev
	}
	h.prev, h.next = nil, nil
	b.open--
}

func (b *book) poke() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// inHand returns the number of deliveries that are not settled.
func (b *book) inHand() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.open
}

// hold keeps what is returned until thaw or finish: as long as the consumer
// is registered, the broker would hand it straight back, and count that.
func (b *book) hold() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.holding = true
}

// finish says that no more deliveries come. The settler ends when the last one
// is settled, or at once where expired is set.
func (b *book) finish(expired bool) {
	b.mu.Lock()
	b.closing, b.holding = true, false
	b.expired = b.expired || expired
	b.mu.Unlock()
	b.poke()
}

// kill ends the book: what is settled from now on is dropped. It returns what
// was settled and not told.
func (b *book) kill() []*held {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.dead = true
	left := append(b.returns, b.acks...)
	b.acks, b.returns = nil, nil
	b.poke()
	return left
}

// floor is the tag that an ack with `multiple` may not reach: the oldest open
// one, or the oldest of the returns that wait. The broker has both yet.
func (b *book) floor() uint64 {
	floor := uint64(math.MaxUint64)
	if b.first != nil {
		floor = b.first.tag
	}
	for _, h := range b.returns { // none but while they are held back
		floor = min(floor, h.tag)
	}
	return floor
}

// batch is what to tell the broker next, in this order.
type batch struct {
	returns []*held
	covered []*held // acked by one ack with `multiple` for upTo, its last tag
	upTo    uint64
	strays  []*held // settled above an open tag: acked one by one
}

// since returns how many there are with a tag after base.
func (b *batch) since(base uint64) (n int) {
	for _, list := range [][]*held{b.returns, b.covered, b.strays} {
		for _, h := range list {
			if h.tag > base {
				n++
			}
		}
	}
	return n
}

func (b *batch) empty() bool { return len(b.returns)+len(b.covered)+len(b.strays) == 0 }

// take returns what is due at now. Where acks remain that may wait for
// company, wait says how long; 0 means until woken. done means that nothing
// will come any more.
func (b *book) take(now time.Time) (out batch, wait time.Duration, done bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.dead {
		return out, 0, true
	}
	if b.frozen && !b.closing {
		return out, 0, false
	}
	defer func() { b.out -= out.since(b.base) }()
	if !b.holding {
		out.returns, b.returns = b.returns, nil
	}
	done = b.closing && (b.open == 0 || b.expired)
	if len(b.acks) == 0 {
		return out, 0, done
	}
	if left := b.wait - now.Sub(b.oldest); !b.due() && left > 0 {
		return out, left, done
	}
	floor, patient := b.floor(), !b.closing && b.open > 0 && len(b.acks) < b.most
	kept := b.acks[:0]
	for _, h := range b.acks {
		switch {
		case h.tag <= floor:
			out.covered = append(out.covered, h)
			out.upTo = max(out.upTo, h.tag)
		case patient && now.Sub(h.at) < strayWait:
			kept = append(kept, h)
		default:
			out.strays = append(out.strays, h)
		}
	}
	clear(b.acks[len(kept):])
	b.acks, b.fresh, b.oldest = kept, 0, now
	if len(kept) > 0 {
		wait = b.wait
	}
	return out, wait, done
}

// due reports whether acks wait no longer.
func (b *book) due() bool {
	return b.closing || b.open == 0 || b.fresh >= b.limit || len(b.acks) >= b.most
}
