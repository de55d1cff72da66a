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
	since time.Time
}

// NewProbation returns a probation of n settled messages: as many as the process
// can have had in hand, its prefetch.
func NewProbation(n int) *Probation {
	p := &Probation{since: time.Now()}
	p.left.Store(int64(n))
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
	return o != Returned && p.On() && p.left.Add(-1) == 0
}
