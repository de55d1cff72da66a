package inbox

import (
	"sync/atomic"
	"time"
)

// Probation is the time after this process was ended in the middle of its work,
// perhaps by a message. Its messages go one at a time until so many were settled
// that the one to blame must have been among them, if it was one: the broker
// hands returned messages out first. Nobody else is in hand then when the process
// dies again, and the broker's count of deliveries rises for nobody else.
//
// A nil Probation is over. Safe for concurrent use.
type Probation struct {
	left  atomic.Int64
	spare int64 // of them, where the handler is slow
	since time.Time
}

// slowAfter is when a probation knows that its handler is slow: a quick one has
// settled hundreds of messages by then, one after the other.
const slowAfter = 10 * time.Second

// NewProbation returns a probation of most settled messages: as many as the process
// can have had in hand. Where the prefetch follows the speed of the handler, that
// is many for a quick one alone; a slow one can have had least.
func NewProbation(least, most int) *Probation {
	p := &Probation{spare: int64(most - least), since: time.Now()}
	p.left.Store(int64(most))
	return p
}

// On reports whether messages go one at a time.
func (p *Probation) On() bool { return p != nil && p.left.Load() > 0 }

// State returns how many messages are left to settle, 0 where it is over, and
// since when it has been on.
func (p *Probation) State() (left int, since time.Time) {
	if !p.On() {
		return 0, time.Time{}
	}
	return int(max(0, p.left.Load())), p.since
}

// settled counts a message that has come to an end and did not take the process
// with it. It reports whether that was the last one of the probation.
func (p *Probation) settled(o Outcome) (ended bool) {
	if o == Returned || !p.On() {
		return false
	}
	left := p.left.Add(-1)
	if 0 < left && left <= p.spare && time.Since(p.since) > slowAfter {
		return p.left.Swap(0) > 0
	}
	return left == 0
}
