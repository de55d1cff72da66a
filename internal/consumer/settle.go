package consumer

import (
	"context"
	"log/slog"
	"time"

	"github.com/inboxd/inboxd/internal/inbox"
)

// settler is the only goroutine that acks, nacks and rejects in a session. It
// knows the session's own channel and no other, so that a tag can never reach
// a session that did not deliver it.
func (s *session) settler() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		out, wait, done := s.book.take(time.Now())
		if !out.empty() {
			err := s.tell(&out)
			inbox.Failpoint("after-ack")
			s.record(&out, err)
			if err != nil {
				s.lose(err)
				return
			}
		}
		if done {
			return
		}
		if wait > 0 {
			timer.Reset(wait)
		} else {
			timer.Stop()
		}
		select {
		case <-s.book.wake:
		case <-timer.C:
		case <-s.lost:
			return
		}
	}
}

// tell sends a batch as one write. Returns go first: the ack with `multiple`
// after them then covers nothing that was to be returned.
func (s *session) tell(b *batch) error {
	return s.call("settling", func() error {
		s.conn.link.cork()
		err := s.write(b)
		if uerr := s.conn.link.uncork(); err == nil {
			err = uerr
		}
		return err
	})
}

func (s *session) write(b *batch) error {
	for _, h := range b.returns {
		var err error
		if h.result.Outcome.Decision() == inbox.Reject {
			err = s.ch.Reject(h.tag, false)
		} else {
			err = s.ch.Nack(h.tag, false, true)
		}
		if err != nil {
			return err
		}
	}
	if len(b.covered) > 0 {
		if err := s.ch.Ack(b.upTo, len(b.covered) > 1); err != nil {
			return err
		}
	}
	for _, h := range b.strays {
		if err := s.ch.Ack(h.tag, false); err != nil {
			return err
		}
	}
	return nil
}

// record counts and logs what was told, or what failed to be.
func (s *session) record(b *batch, err error) {
	for _, list := range [][]*held{b.returns, b.covered, b.strays} {
		for _, h := range list {
			s.c.recordSettled(h, err)
		}
	}
}

// recordSettled writes the one line of a delivery. lost says why the broker
// did not hear of it; the delivery comes again then.
func (c *Consumer) recordSettled(h *held, lost error) {
	c.hand.change(-h.size)
	decision := h.result.Outcome.Decision()
	if lost != nil {
		c.metrics.dropped.Inc()
	} else {
		c.metrics.settled[decision].Inc()
	}
	level := slog.LevelDebug
	if !quiet(h.result) || lost != nil && decision != inbox.Requeue {
		level = slog.LevelWarn
	}
	ctx := context.Background()
	if !c.log.Enabled(ctx, level) {
		return
	}
	attrs := []slog.Attr{
		slog.String("message_id", string(h.ID)),
		slog.String("outcome", h.result.Outcome.String()),
		slog.String("decision", decisionWord(decision)),
		slog.Bool("redelivered", h.Redelivered),
		slog.Duration("duration", time.Since(h.Received)),
	}
	if h.DeliveryCount >= 0 {
		attrs = append(attrs, slog.Int64("delivery_count", h.DeliveryCount))
	}
	if h.Requests > 0 {
		attrs = append(attrs, slog.Int("attempt", h.Requests), slog.Int("status_code", h.Last.Status))
	}
	if h.result.Reason != inbox.NoReason {
		attrs = append(attrs, slog.String("reason", h.result.Reason.String()))
	}
	if h.result.Err != nil {
		attrs = append(attrs, slog.Any("err", h.result.Err))
	}
	if lost != nil {
		attrs = append(attrs, slog.String("lost", lost.Error()))
	}
	c.log.LogAttrs(ctx, level, "delivery settled", attrs...)
}

// quiet reports whether nothing went wrong: processed or seen before, or handed
// back because the session or the process was about to end.
func quiet(r inbox.Result) bool {
	switch r.Outcome {
	case inbox.Processed, inbox.Duplicate:
		return r.Err == nil
	case inbox.Returned:
		return r.Err == nil || isStop(r.Err)
	default:
		return false
	}
}

func decisionWord(d inbox.Decision) string {
	switch d {
	case inbox.Ack:
		return "ack"
	case inbox.Reject:
		return "reject"
	default:
		return "requeue"
	}
}
