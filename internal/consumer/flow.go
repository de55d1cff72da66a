package consumer

import (
	"math"
	"sync/atomic"
	"time"
)

const (
	// lookEvery is how often a session looks at its flow.
	lookEvery = 100 * time.Millisecond
	// ahead is how long the messages in hand should last a handler: much longer
	// than a turn to the broker and back, and short enough that nothing gets old.
	ahead = 50 * time.Millisecond
	// heldPatience is how long reading may be held back before the prefetch is
	// lowered. It is far below what a broker takes from a peer that does not read,
	// and below the time that it has for an answer.
	heldPatience = 2 * time.Second
	// slowLooks in a row lower a prefetch that is four times too large.
	slowLooks = 30
	// Growth waits that long after the prefetch was lowered, longer each time.
	minCalm, maxCalm = 10 * time.Second, 10 * time.Minute
)

// flow is the rule for a consumer's prefetch. A handler that is quick earns a
// large one, so that acks and records go in groups; with a slow one, whatever is
// in hand only gets older, and has a delivery counted against it in a crash. In
// no case does it promise more bodies than there is room for, as their sizes have
// been lately. It changes rarely: each change is a new registration at the broker.
//
// It belongs to the goroutine of Run, but for sizes.
type flow struct {
	least, most int   // equal where the prefetch is fixed
	limit       int64 // of bytes in hand, 0 for none
	// steady is for a queue that would go to another consumer at each change.
	steady bool
	sizes  sizes

	slow   int           // looks in a row with much too large a prefetch
	strain time.Duration // how long reading was held back, less a part of the time since
	calm   time.Duration // the pause of growth after the last strain
	growth time.Time     // not before
}

// look is what a session saw since the last look.
type look struct {
	prefetch int  // in force
	open     int  // deliveries not settled
	busy     bool // at least half the prefetch was in hand
	settled  int
	held     bool // reading is held back at this moment
}

// first is the prefetch to begin a session with.
func (f *flow) first() int {
	f.slow, f.strain = 0, 0
	if f.steady {
		return f.least
	}
	return min(f.least, f.fits(f.limit))
}

// fits returns how many bodies go into so many bytes, one at least.
func (f *flow) fits(bytes int64) int {
	if f.limit == 0 {
		return maxPrefetch
	}
	return int(max(1, min(maxPrefetch, bytes/max(1, f.sizes.mean.Load()))))
}

// want is the prefetch that a handler of this speed should have.
func (f *flow) want(l look) int {
	earned := l.settled * int(ahead) / int(lookEvery)
	return min(max(f.least, min(earned, f.most)), f.fits(f.limit))
}

// after looks at what happened in the last lookEvery. It returns a prefetch to
// change to, or 0; strained says that it is for want of room.
func (f *flow) after(l look, now time.Time) (prefetch int, strained bool) {
	if l.held {
		f.strain += lookEvery
	} else {
		f.strain = max(0, f.strain-lookEvery/4)
	}
	if f.strain >= heldPatience {
		f.strained(now)
		return f.want(l), true
	}
	want := f.want(l)
	switch {
	case f.steady:
	case want > l.prefetch:
		f.slow = 0
		enough := want >= 2*l.prefetch || l.prefetch < f.least && want >= f.least
		if enough && l.busy && f.sizes.n.Load() >= int64(l.prefetch) && !now.Before(f.growth) {
			return want, false
		}
	case want <= l.prefetch/4 && l.open > want:
		if f.slow++; f.slow >= slowLooks {
			f.slow = 0
			f.growth = now.Add(minCalm)
			return want, false
		}
	default:
		f.slow = 0
	}
	return 0, false
}

func (f *flow) strained(now time.Time) {
	if now.Sub(f.growth) > maxCalm {
		f.calm = 0
	}
	f.calm = min(max(minCalm, 2*f.calm), maxCalm)
	f.strain, f.slow = 0, 0
	f.growth = now.Add(f.calm)
}

// room returns the prefetch to register with, at most want, while open
// deliveries and used bytes are in hand yet, or 0 where it is better to wait.
// refused is a body that had no room the last time, and must have it now.
func (f *flow) room(want, open int, used, refused int64, waited time.Duration) int {
	n := want
	if f.limit > 0 && used > 0 {
		each := max(1, refused, f.sizes.mean.Load())
		free := f.limit - used
		if free < each || used > f.limit/2 && waited < time.Second {
			return 0
		}
		n = int(min(int64(n), free/each))
	}
	if f.least < f.most && !f.steady {
		// The deliveries in hand do not count against the new registration.
		if f.most-open < min(n, f.least) {
			return 0
		}
		n = min(n, f.most-open)
	}
	return n
}

// sizes is the mean size of the last bodies, which follows larger ones quicker
// than smaller ones. It has one writer.
type sizes struct{ n, mean atomic.Int64 }

func (z *sizes) add(size int64) {
	mean, weight := z.mean.Load(), min(z.n.Add(1), 64)
	if size > mean {
		weight = min(weight, 8)
	}
	z.mean.Store(mean + int64(math.Round(float64(size-mean)/float64(weight))))
}
