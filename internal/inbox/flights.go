package inbox

import (
	"context"
	"sync"
	"time"
)

// flights is the single flight by key inside one process. It outlives broker
// sessions: a redelivery of a message whose request still runs, started by a
// session that is gone, waits here instead of starting a second request.
type flights struct {
	mu sync.Mutex
	by map[MessageID]flight
	// history keeps what was tried for deliveries that went back to the broker,
	// so that a reconnect costs a message neither its attempts nor the number
	// of its next request. Bounded: what does not fit is forgotten, which costs
	// a message at most one more set of attempts.
	history map[MessageID]tried
}

type flight struct {
	since time.Time
	done  *landing // nil until somebody waits
}

// landing is the end of a flight for those who wait for it.
type landing struct {
	ch chan struct{} // closed at the end; then the others are set
	// recorded is when the message was recorded here, zero where it was not.
	recorded    time.Time
	fingerprint Fingerprint
}

// claim answers for the ledger where the flight before ended in a record: it knows
// what a look-up would find. It never says that a message is new.
func (l *landing) claim(key Key, fp Fingerprint) (c Claim, known bool) {
	if l == nil || l.recorded.IsZero() {
		return Claim{}, false
	}
	c = Claim{Key: key, Fingerprint: fp, Status: ClaimRecorded, RecordedAt: l.recorded.UTC(), Age: time.Since(l.recorded)}
	if !l.fingerprint.Matches(fp) {
		c.Status = ClaimMismatch
	}
	return c, true
}

type tried struct {
	attempts, requests, slow int
	suspect                  bool
}

const maxHistory = 8192

// join waits until no other delivery of this message is in flight here, and
// takes the flight. It reports false where ctx ended first, or the hold of d: the
// other may have all of its own before it. Who got true calls leave in the end.
// before is the last flight that was waited for, nil for none.
func (f *flights) join(ctx context.Context, d *Delivery, until time.Time) (ok bool, before *landing) {
	for {
		f.mu.Lock()
		if f.by == nil {
			f.by = make(map[MessageID]flight)
		}
		cur, busy := f.by[d.ID]
		if !busy {
			f.by[d.ID] = flight{since: d.Received}
			f.recall(d)
			f.mu.Unlock()
			return true, before
		}
		if cur.done == nil {
			cur.done = &landing{ch: make(chan struct{})}
			f.by[d.ID] = cur
		}
		f.mu.Unlock()
		if !waitFor(ctx, cur.done.ch, until) {
			return false, nil
		}
		before = cur.done
	}
}

// waitFor reports whether done was closed before ctx ended and until had come.
func waitFor(ctx context.Context, done <-chan struct{}, until time.Time) bool {
	t := time.NewTimer(time.Until(until))
	defer t.Stop()
	select {
	case <-done:
		return true
	case <-t.C:
	case <-ctx.Done():
	}
	return false
}

// leave ends the flight of d and, where the message went back to the broker,
// remembers what was tried.
func (f *flights) leave(d *Delivery, o Outcome) {
	f.mu.Lock()
	defer f.mu.Unlock()
	cur := f.by[d.ID]
	delete(f.by, d.ID)
	if cur.done != nil {
		if o == Processed {
			cur.done.recorded, cur.done.fingerprint = time.Now(), d.Fingerprint
		}
		close(cur.done.ch)
	}
	if o != Returned || d.Requests == 0 || d.StoredID != "" {
		return
	}
	if f.history == nil {
		f.history = make(map[MessageID]tried)
	}
	if len(f.history) >= maxHistory {
		for id := range f.history {
			delete(f.history, id)
			break
		}
	}
	f.history[d.ID] = tried{d.Attempts, d.Requests, d.Slow, d.Suspect}
}

// recall gives d what leave remembered of an earlier delivery.
func (f *flights) recall(d *Delivery) {
	if len(f.history) == 0 {
		return
	}
	if t, ok := f.history[d.ID]; ok {
		delete(f.history, d.ID)
		d.Attempts = max(d.Attempts, t.attempts)
		d.Requests = max(d.Requests, t.requests)
		d.Slow = max(d.Slow, t.slow)
		d.Suspect = d.Suspect || t.suspect
	}
}

// whileAbsent runs do, which must not wait, where no delivery of the message is in
// flight, and keeps one from joining meanwhile. It reports whether it did.
func (f *flights) whileAbsent(id MessageID, do func()) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, busy := f.by[id]; busy {
		return false
	}
	do()
	return true
}

// InFlight reports whether a delivery of the message is in work here, and since
// when.
func (p *Processor) InFlight(id MessageID) (since time.Time, ok bool) {
	p.flights.mu.Lock()
	defer p.flights.mu.Unlock()
	f, ok := p.flights.by[id]
	return f.since, ok
}

// Held returns the number of messages in work here and when the oldest of them
// was received.
func (p *Processor) Held() (n int, oldest time.Time) {
	p.flights.mu.Lock()
	defer p.flights.mu.Unlock()
	for _, f := range p.flights.by {
		if oldest.IsZero() || f.since.Before(oldest) {
			oldest = f.since
		}
	}
	return len(p.flights.by), oldest
}
