package inbox

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

// Retry is the retry policy of a consumer.
type Retry struct {
	Initial     time.Duration // the first backoff's upper bound
	Max         time.Duration // every backoff's upper bound
	MaxAttempts int           // requests that count before the message is parked
	Hold        time.Duration // the longest a delivery stays unacked
}

// slowFactor: an answer that points at a wrong set-up counts only against a
// long cap, so many times max_attempts: a deploy must not park a queue.
const slowFactor = 10

// The backoff of store calls, apart from the handler's.
const (
	storeBackoff    = 50 * time.Millisecond
	storeBackoffMax = 2 * time.Second
	parkBackoffMax  = 10 * time.Second
	maxRemoveTries  = 100
	maxLastTries    = 3
)

// account counts the answer in d.Last and reports the reason to park the
// message now, or NoReason where it is to be tried again.
func (r Retry) account(d *Delivery) ParkReason {
	switch v := d.Last.Verdict; {
	case v == Refused:
		return HandlerReject
	case v == Misconfigured:
		d.Slow++
		if d.Slow >= r.MaxAttempts*slowFactor {
			return AttemptsUsed
		}
	case v.Counts():
		d.Attempts++
		if d.Attempts < r.MaxAttempts {
			return NoReason
		}
		if errors.Is(d.Last.Err, ErrNoEvidence) {
			return NoEvidence
		}
		return AttemptsUsed
	}
	return NoReason
}

// delay is how long to wait after answer a, the tries-th in a row (from 0):
// exponential with full jitter, never less than the answer's Retry-After, and
// slow where the set-up is wrong.
func (r Retry) delay(a Answer, tries int) time.Duration {
	var wait time.Duration
	switch a.Verdict {
	case Misconfigured, Gone:
		wait = r.Max/2 + jitter(r.Max/2)
	default:
		wait = jitter(backoff(r.Initial, r.Max, tries))
	}
	return max(wait, a.RetryAfter)
}

// backoff is initial × 2^tries, at most limit.
func backoff(initial, limit time.Duration, tries int) time.Duration {
	if tries > 30 {
		return limit
	}
	if d := initial << tries; d > 0 && d < limit {
		return d
	}
	return limit
}

// jitter is a random duration in [0, d]: full jitter, so that what failed
// together does not come back together.
func jitter(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return rand.N(d + 1)
}

// sleep waits and reports true, or false where ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// pause waits and reports true, or false where the process's grace ended first.
func (p *Processor) pause(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-p.Stop:
		return false
	}
}

// stopped reports whether the process's grace has ended. A request that was cut
// then is nobody's failure: it neither counts nor parks its message.
func (p *Processor) stopped() bool {
	select {
	case <-p.Stop:
		return true
	default:
		return false
	}
}

func isNotFound(err error) bool { return errors.Is(err, ErrNotFound) }

// firstOf is the earlier known time, or now where none is known.
func firstOf(known, received time.Time) time.Time {
	if !known.IsZero() {
		return known
	}
	return received
}
