package inbox

import (
	"context"
	"fmt"
	"time"
)

// park keeps the message whole for a person and, only when that is durable,
// lets go of the delivery. Where it cannot be kept the delivery stays ours and
// is tried again, and goes back when ctx or its hold ends.
func (p *Processor) park(ctx context.Context, d *Delivery, reason ParkReason, why error) Result {
	m := p.parked(d, reason, why)
	m.State = StateParked
	limited, cancel := context.WithDeadline(ctx, latest(d.Received.Add(p.Retry.Hold), time.Now().Add(keepWithin)))
	defer cancel()
	if err := p.keep(limited, p.Parker, m); err != nil {
		return Result{Outcome: Returned, Err: err}
	}
	if m.ID == "" && d.StoredID != "" {
		// It left the store for the broker; the copy there is confirmed.
		if err := p.removeStored(ctx, d.StoredID); err != nil {
			return Result{Outcome: Returned, Err: err}
		}
	}
	return Result{Outcome: Parked, Reason: reason, Err: why}
}

// deferUntil keeps the message whole with a due time: its hold ends before its
// next attempt. Attempts survive a restart in this way. A delivery that cannot
// be stored goes back to the broker.
func (p *Processor) deferUntil(ctx context.Context, d *Delivery, due time.Time) Result {
	m := p.parked(d, NoReason, d.Last.Err)
	m.State = StateDeferred
	m.Due = due.UTC()
	ctx, cancel := context.WithTimeout(ctx, keepWithin)
	defer cancel()
	if err := p.keep(ctx, p.Shelf, m); err != nil {
		return Result{Outcome: Returned, Err: err}
	}
	return Result{Outcome: Deferred, Err: d.Last.Err}
}

// keepWithin is how long a message is tried to be kept when its hold has ended:
// the broker's consumer timeout is not far then.
const keepWithin = 10 * time.Second

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// keep repeats Park until it succeeds or ctx ends. The write itself is not cut
// short: a stop must not leave it unknown whether the message was kept.
func (p *Processor) keep(ctx context.Context, to Parker, m *ParkedMessage) error {
	for tries := 0; ; tries++ {
		err := to.Park(context.WithoutCancel(ctx), m)
		if err == nil {
			return nil
		}
		p.Metrics.parkFailures.Inc()
		if tries == 0 {
			p.Log.Warn("message cannot be parked yet", "consumer", p.Consumer, "message_id", m.MessageID, "err", err)
		}
		if !sleep(ctx, jitter(backoff(storeBackoff, parkBackoffMax, tries))) {
			return fmt.Errorf("park: %w", err)
		}
	}
}

func (p *Processor) removeStored(ctx context.Context, id string) error {
	ctx = context.WithoutCancel(ctx)
	for tries := 0; ; tries++ {
		err := p.Shelf.Remove(ctx, id)
		if err == nil || isNotFound(err) {
			return nil
		}
		if tries == maxRemoveTries || !p.pause(jitter(backoff(storeBackoff, storeBackoffMax, tries))) {
			return fmt.Errorf("remove: %w", err)
		}
	}
}

func (p *Processor) parked(d *Delivery, reason ParkReason, why error) *ParkedMessage {
	m := &ParkedMessage{
		ID:            d.StoredID,
		Consumer:      p.Consumer,
		MessageID:     d.ID,
		Fingerprint:   d.Fingerprint,
		Reason:        reason,
		Attempts:      d.Attempts,
		Requests:      d.Requests,
		Slow:          d.Slow,
		LastStatus:    d.Last.Status,
		Answer:        d.Last.Excerpt,
		Queue:         d.Queue,
		Redelivered:   d.Redelivered,
		FirstReceived: d.FirstReceived.UTC(),
		ParkedAt:      time.Now().UTC(),
		Message:       d.Message,
	}
	if !d.LastAttempt.IsZero() {
		m.LastAttempt = d.LastAttempt.UTC()
	}
	if why != nil {
		m.Error = why.Error()
	}
	return m
}
