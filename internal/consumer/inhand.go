package consumer

import (
	"sync"
	"time"
)

// inHand counts the bytes of the bodies in one consumer's hands, across its
// sessions: a handler that outlives its session holds its body still. A body
// counts from its content header on, before the library has made room for it,
// until its delivery is settled.
type inHand struct {
	limit   int64 // 0: none
	metrics *metrics

	mu   sync.Mutex
	used int64
	room chan struct{} // closed when used falls; nil while nobody waits
}

// take counts n bytes where they fit, or where nothing else is in hand: one
// message must always get through, however large. Otherwise it returns a channel
// that is closed when there is less in hand.
func (b *inHand) take(n int64) (room <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.limit > 0 && b.used > 0 && b.used+n > b.limit {
		if b.room == nil {
			b.room = make(chan struct{})
		}
		return b.room
	}
	b.add(n)
	return nil
}

// change counts n bytes more, or less, whatever the limit is.
func (b *inHand) change(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.add(n)
}

func (b *inHand) add(n int64) {
	b.used += n
	b.metrics.inHand.Set(float64(b.used))
	if n < 0 && b.room != nil {
		close(b.room)
		b.room = nil
	}
}

func (b *inHand) bytes() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}

// intake is what one session's socket brings in. A body for which there is no
// room holds the reading back, and the broker with it: TCP carries that on. It
// must not last. The answers to our calls come the same way, and a broker closes
// a connection on which it cannot write (after 15 to 30 s), with everything in
// hand counted as delivered once more. So a session strips in the end: what has
// no room then comes in without its body, at no cost, and goes back to the queue.
type intake struct {
	hand *inHand
	// resumed, where set, is called when reading goes on.
	resumed func()

	mu        sync.Mutex
	headers   uint64 // seen: the number of the last one is its delivery tag
	unclaimed int64  // bytes counted and not taken over by claim
	stripping bool
	strip     chan struct{}    // closed while stripping
	stripped  map[uint64]int64 // sizes of bodies that were left out, by tag
	refused   int64            // the largest of them since the last look
	since     time.Time        // of reading being held back, zero while it is not
	ended     bool
	end       chan struct{} // closed when the socket is
}

func newIntake(hand *inHand) *intake {
	return &intake{hand: hand, strip: make(chan struct{}), stripped: make(map[uint64]int64), end: make(chan struct{})}
}

// maxBodySize is the largest message that RabbitMQ can be set to take.
const maxBodySize = 512 << 20

// ruling is what is to become of a body.
type ruling int

const (
	bodyWaits ruling = iota
	bodyPasses
	bodyStripped
)

// admit decides about the next content header's body without waiting. The header
// is not counted as seen while the ruling is to wait.
//
// Headers are numbered as they come and the numbers are the delivery tags: a
// session has one channel, and what it gets on it is deliveries, from tag 1 on.
func (i *intake) admit(size uint64) (v ruling, room <-chan struct{}) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.ended {
		return bodyPasses, nil
	}
	n := int64(min(size, maxBodySize+1))
	if n <= maxBodySize {
		room = i.hand.take(n)
	}
	if room != nil && !i.stripping {
		return bodyWaits, room
	}
	i.headers++
	if room != nil || n > maxBodySize {
		i.stripped[i.headers] = n
		i.refused = max(i.refused, n)
		return bodyStripped, nil
	}
	i.unclaimed += n
	return bodyPasses, nil
}

// wait is admit that waits for room, for the order to strip, or for the end.
func (i *intake) wait(size uint64) ruling {
	v, room := i.admit(size)
	if v != bodyWaits {
		return v
	}
	begun := time.Now()
	i.holding(begun)
	for v == bodyWaits {
		i.mu.Lock()
		strip := i.strip
		i.mu.Unlock()
		select {
		case <-room:
		case <-strip:
		case <-i.end:
		}
		v, room = i.admit(size)
	}
	i.holding(time.Time{})
	i.hand.metrics.heldBack.Add(time.Since(begun).Seconds())
	if i.resumed != nil {
		i.resumed()
	}
	return v
}

func (i *intake) holding(since time.Time) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.since = since
}

// isHeld reports whether reading is held back.
func (i *intake) isHeld() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return !i.since.IsZero()
}

// setStripping turns it on or off. While it is on, reading is never held back.
func (i *intake) setStripping(on bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	switch {
	case on == i.stripping:
	case on:
		close(i.strip)
	default:
		i.strip = make(chan struct{})
	}
	i.stripping = on
}

// claim takes a delivery over that has come through the library, with n bytes of
// body. It returns how many bytes are to be given back to hand when they are not
// needed any more, and the size of the whole body where that was stripped.
func (i *intake) claim(tag uint64, n int64) (counted, size int64, stripped bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if size, stripped = i.stripped[tag]; stripped {
		delete(i.stripped, tag)
		return 0, size, true
	}
	if i.ended {
		i.hand.change(n)
	} else {
		i.unclaimed -= n
	}
	return n, n, false
}

// takeRefused returns the size of the largest body that was stripped since the
// last call.
func (i *intake) takeRefused() int64 {
	i.mu.Lock()
	defer i.mu.Unlock()
	n := i.refused
	i.refused = 0
	return n
}

// close ends the intake with its socket: nothing waits any more, and what was on
// its way to claim counts no more until it comes there.
func (i *intake) close() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.ended {
		return
	}
	i.ended = true
	close(i.end)
	i.hand.change(-i.unclaimed)
	i.unclaimed = 0
}
