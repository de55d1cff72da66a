package forward

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/inboxd/inboxd/internal/inbox"
)

// run ends the pauses of an open breaker: it asks the application, without a
// message, and lets one message go where somebody is there. An outage that
// lasts shuts the gate, so that the consumer is cancelled and other replicas
// can have its messages.
func (b *breaker) run(ctx context.Context, ask func(context.Context) error) {
	for ctx.Err() == nil {
		s := b.snapshot()
		if s.state != BreakerOpen {
			wait(ctx, s.changed, time.Time{})
			continue
		}
		shutAt := s.outage.Add(b.opts.GateAfter)
		next := s.resume
		if time.Until(shutAt) <= 0 {
			b.shutGate(s.epoch)
		} else if shutAt.Before(next) {
			next = shutAt
		}
		if time.Until(next) > 0 {
			wait(ctx, s.changed, next)
			continue
		}
		if time.Until(s.resume) > 0 {
			continue // it was only time for the gate
		}
		if err := ask(ctx); err != nil {
			pause := b.opts.ConnPause*2/3 + rand.N(b.opts.ConnPause/3+1)
			wait(ctx, s.changed, time.Now().Add(pause))
			continue
		}
		b.halfOpen(s.epoch)
	}
}

// shutGate shuts the gate where the breaker is still in the opening of that
// number.
func (b *breaker) shutGate(epoch int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.epoch == epoch {
		b.gate.Shut(inbox.HindranceBreaker, b.why)
	}
}

// wait returns at the time t (never where t is zero), when changed is closed,
// or when ctx ends.
func wait(ctx context.Context, changed <-chan struct{}, t time.Time) {
	var at <-chan time.Time
	if !t.IsZero() {
		timer := time.NewTimer(time.Until(t))
		defer timer.Stop()
		at = timer.C
	}
	select {
	case <-at:
	case <-changed:
	case <-ctx.Done():
	}
}
