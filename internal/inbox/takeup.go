package inbox

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// dueSignal wakes the take-up before its next look, and counts what it is at.
type dueSignal struct {
	once sync.Once
	ch   chan struct{}
	busy atomic.Int64
}

func (s *dueSignal) c() chan struct{} {
	s.once.Do(func() { s.ch = make(chan struct{}, 1) })
	return s.ch
}

// WakeDue makes RunDue look for due messages now: one was replayed.
func (p *Processor) WakeDue() {
	select {
	case p.due.c() <- struct{}{}:
	default:
	}
}

// TakingUp returns the number of stored messages in work, until they are settled
// at the store.
func (p *Processor) TakingUp() int { return int(p.due.busy.Load()) }

// takeUpEvery is how often an idle take-up looks for due messages.
const takeUpEvery = time.Second

// RunDue takes up stored messages of this consumer when they are due, deferred
// ones as well as replayed ones, through the same way as any message, at most
// atOnce at a time. It does so only while gate is open, and returns when ctx
// has ended and the last of them is settled.
func (p *Processor) RunDue(ctx context.Context, gate *Gate, atOnce int) error {
	slots := make(chan struct{}, atOnce)
	var wg sync.WaitGroup
	defer wg.Wait()

	failures := 0
	for ctx.Err() == nil {
		closures, changed := gate.State()
		if len(closures) > 0 {
			select {
			case <-changed:
			case <-ctx.Done():
			}
			continue
		}
		free := cap(slots) - len(slots)
		if free == 0 {
			select { // a slot: taken and given back at once, to wait for one
			case slots <- struct{}{}:
				<-slots
			case <-ctx.Done():
			}
			continue
		}
		messages, err := p.Shelf.TakeDue(ctx, p.Consumer, free)
		if err != nil && ctx.Err() == nil {
			failures++
			if failures == 1 {
				p.Log.Warn("due messages cannot be taken up", "consumer", p.Consumer, "err", err)
			}
			sleep(ctx, jitter(backoff(takeUpEvery, time.Minute, failures)))
			continue
		}
		failures = 0
		for _, m := range messages {
			slots <- struct{}{}
			wg.Go(func() {
				defer func() { <-slots }()
				p.takeUp(ctx, gate, m)
			})
		}
		if len(messages) < free {
			p.waitDue(ctx)
		}
	}
	return nil
}

func (p *Processor) waitDue(ctx context.Context) {
	t := time.NewTimer(takeUpEvery/2 + jitter(takeUpEvery))
	defer t.Stop()
	select {
	case <-t.C:
	case <-p.due.c():
	case <-ctx.Done():
	}
}

// takeUp takes one stored message through Process and settles it at the store:
// it is removed only after it was processed or found recorded. Parked and
// deferred again, Process has stored it already.
func (p *Processor) takeUp(ctx context.Context, gate *Gate, m *ParkedMessage) {
	p.due.busy.Add(1)
	defer p.due.busy.Add(-1)
	open, cancel := whileOpen(ctx, gate)
	defer cancel()
	d := &Delivery{
		Message:       m.Message,
		Queue:         m.Queue,
		Redelivered:   true,
		DeliveryCount: -1,
		Received:      time.Now(),
		StoredID:      m.ID,
		Attempts:      m.Attempts,
		Requests:      m.Requests,
		Slow:          m.Slow,
		FirstReceived: m.FirstReceived,
	}
	res := p.Process(open, d)

	var err error
	switch res.Outcome {
	case Processed, Duplicate:
		err = p.insist(ctx, func(ctx context.Context) error { return p.Shelf.Remove(ctx, m.ID) })
	case Parked, Deferred:
	default:
		err = p.insist(ctx, func(ctx context.Context) error { return p.putBack(ctx, d, m) })
	}
	log := p.Log.With("consumer", p.Consumer, "message_id", d.ID, "parked_id", m.ID,
		"outcome", res.Outcome.String(), "attempt", d.Requests)
	switch {
	case err != nil:
		log.Warn("stored message settled", "err", err)
	case res.Err != nil:
		log.Warn("stored message settled", "err", res.Err)
	default:
		log.Debug("stored message settled")
	}
}

// putBack ends the take-up of m without a result. What was tried is stored with
// it: a message whose attempts shut the gate each time must not have them for ever.
func (p *Processor) putBack(ctx context.Context, d *Delivery, m *ParkedMessage) error {
	due := time.Now().Add(takeUpEvery).UTC()
	if d.Requests == m.Requests {
		return p.Shelf.PutBack(ctx, m.ID, due)
	}
	back := p.parked(d, NoReason, d.Last.Err)
	back.State, back.Due = StateDeferred, due
	return p.Shelf.Park(ctx, back)
}

// insist repeats a write to the store until it succeeds: a message that stays
// taken is nobody's. Where ctx has ended it soon gives up, for the next process
// finds the message taken by nobody.
func (p *Processor) insist(ctx context.Context, write func(context.Context) error) error {
	last := 0
	for tries := 0; ; tries++ {
		err := write(context.WithoutCancel(ctx))
		if err == nil || isNotFound(err) {
			return nil
		}
		if ctx.Err() != nil {
			last++
		}
		if last > maxLastTries || !p.pause(jitter(backoff(storeBackoff, storeBackoffMax, tries))) {
			return err
		}
	}
}

// whileOpen derives a context that ends when the gate shuts, or has ended where it
// is shut.
func whileOpen(ctx context.Context, gate *Gate) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	closures, changed := gate.State()
	if len(closures) > 0 {
		cancel()
		return ctx, cancel
	}
	go func() {
		for len(closures) == 0 {
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
			closures, changed = gate.State()
		}
		cancel()
	}()
	return ctx, cancel
}
