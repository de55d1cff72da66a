package consumer

import (
	"context"
	"math/rand/v2"
	"time"
)

const (
	// stableAfter is how long a session must last for the next pause to be
	// short again: a broker that accepts and breaks must not be hammered.
	stableAfter = 30 * time.Second
	// accessPause is the least pause after a refusal, so that a wrong password
	// does not get the account locked.
	accessPause = 5 * time.Second
	// refusedCap and topologyCap are shorter than the general cap: a refused
	// dial costs the broker nothing and a passive declare little, and both end
	// the moment a node is up again or a queue is there again.
	refusedCap  = 4 * time.Second
	topologyCap = 3 * time.Second
)

// backoff draws the pauses between dials with full jitter, so that a fleet does
// not come back in lockstep.
type backoff struct {
	min, max time.Duration
	failures int
}

func (b *backoff) reset() { b.failures = 0 }

// next returns the pause after one more failure of kind k.
func (b *backoff) next(k kind) time.Duration {
	limit := b.max
	switch k {
	case kindRefused:
		limit = min(limit, refusedCap)
	case kindTopology, kindCancelled:
		limit = min(limit, topologyCap)
	}
	ceiling := limit
	if b.failures < 20 {
		ceiling = min(limit, b.min<<b.failures)
	}
	b.failures++
	pause := rand.N(ceiling) + 1
	if k == kindAccess || k == kindSetup {
		pause += accessPause
	}
	return pause
}

// sleep waits for d, or less if ctx ends or wake is closed.
func sleep(ctx context.Context, d time.Duration, wake <-chan struct{}) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	case <-wake:
	}
}

// outage thins the log of a long outage: a failure of one kind is logged when it
// comes up and then once a minute, also where two nodes fail in turn, each in
// its way.
type outage struct {
	logged map[kind]time.Time
	n      int // failures since the last line
}

// report says whether to log a failure of kind k now, and how many were not
// logged since the last line.
func (o *outage) report(k kind, now time.Time) (log bool, skipped int) {
	if at, ok := o.logged[k]; ok && now.Sub(at) < time.Minute {
		o.n++
		return false, 0
	}
	if o.logged == nil {
		o.logged = make(map[kind]time.Time)
	}
	o.logged[k] = now
	skipped, o.n = o.n, 0
	return true, skipped
}
