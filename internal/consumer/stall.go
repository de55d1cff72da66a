package consumer

import (
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	stallCheckEvery = 30 * time.Second
	minPatience     = time.Minute
	maxPatience     = 30 * time.Minute
)

// patience tells how long a queue may hold ready messages while an idle
// consumer gets none. That happens for good reasons too (a standby behind a
// single active consumer, a lower consumer priority), so that each vain
// reconnect doubles it. It belongs to one goroutine.
type patience struct {
	limit time.Duration
	since time.Time // ready messages seen and nothing delivered from here on
}

// stalled takes one look: ready messages in the queue, unsettled deliveries in
// our hands, and when the last delivery or session began.
func (p *patience) stalled(ready, inHand int, last, now time.Time) bool {
	if p.limit == 0 {
		p.limit = minPatience
	}
	switch {
	case ready == 0 || inHand > 0:
		p.since = time.Time{}
		return false
	case p.since.IsZero() || last.After(p.since):
		if last.After(p.since) && !p.since.IsZero() {
			p.limit = minPatience
		}
		p.since = now
		return false
	case now.Sub(p.since) < p.limit:
		return false
	}
	p.since = time.Time{}
	p.limit = min(2*p.limit, maxPatience)
	return true
}

// checkStall asks the broker for the queue's depth and reports an error where
// the consumer seems to be forgotten. The question itself proves that the
// channel is alive.
func (s *session) checkStall() error {
	last := s.c.lastDelivery()
	if time.Since(last) < stallCheckEvery || !s.registered || s.intake.isHeld() {
		return nil
	}
	var q amqp.Queue
	err := s.call("looking at queue "+s.c.opts.Queue, func() (err error) {
		q, err = s.ch.QueueDeclarePassive(s.c.opts.Queue, true, false, false, false, nil)
		return err
	})
	if err != nil {
		return err
	}
	if s.c.patience.stalled(q.Messages, s.book.inHand(), last, time.Now()) {
		return fmt.Errorf("no delivery although %d messages are ready", q.Messages)
	}
	return nil
}
