package forward

import (
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/inboxd/inboxd/internal/inbox"
)

// judged is an answer with what the breaker needs to know beside it.
type judged struct {
	inbox.Answer
	message  string // tells different messages apart
	explicit bool   // by Inbox-Action: the handler itself has looked at the message
}

// judge takes the pass of a request back and draws the conclusions from its
// answer. It returns the answer that counts: while every message is refused,
// a refusal is taken for a wrong set-up.
func (b *breaker) judge(p pass, j judged) inbox.Answer {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.finish(p)

	if j.Verdict == inbox.Done {
		b.refused = b.refused[:0]
		b.blamed = b.blamed[:0]
	}
	if j.Status != 0 {
		b.unreachable = 0
	}
	guard := j.Verdict == inbox.Refused && !j.explicit && b.guard(j.message)
	if guard {
		j.Verdict = inbox.Misconfigured
		j.Err = fmt.Errorf("%d different messages in a row were refused, so the set-up is taken to be wrong: %w",
			len(b.refused), j.Err)
	}
	switch {
	case b.state == BreakerClosed && p.epoch == b.epoch:
		b.judgeClosed(j, guard)
	case b.state == BreakerHalfOpen && p.probe && p.epoch == b.epoch:
		b.judgeProbe(j, guard)
	case b.cause == refusing && j.Verdict == inbox.Done:
		b.close() // one that was under way shows that not all are refused
	}
	return j.Answer
}

// guard notes a refused message and reports whether there are too many
// different ones with no success between them.
func (b *breaker) guard(message string) bool {
	if !slices.Contains(b.refused, message) && len(b.refused) < b.opts.Refusals {
		b.refused = append(b.refused, message)
	}
	return len(b.refused) >= b.opts.Refusals
}

func (b *breaker) judgeClosed(j judged, guard bool) {
	switch j.Verdict {
	case inbox.Done:
		b.ramp = min(b.ramp+1, b.slots)
		b.window.add(false)
	case inbox.Unreachable:
		if b.unreachable++; b.unreachable >= b.opts.Unreachable {
			b.open(unreachable, j.Err.Error(), time.Time{})
		}
	case inbox.Misconfigured:
		if guard {
			b.open(refusing, j.Err.Error(), time.Time{})
		} else if b.blame(j.message) {
			b.open(setup, j.Err.Error(), time.Time{})
		}
	case inbox.Failed, inbox.NoAnswer, inbox.NotNow:
		b.window.add(true)
		if until, ok := askedPause(j); ok {
			b.open(asked, j.Err.Error(), until)
		} else if total, failures := b.window.sum(); total >= b.opts.MinRequests &&
			float64(failures) >= b.opts.FailureRate*float64(total) {
			b.open(failing, fmt.Sprintf("%d of the last %d requests failed, the latest: %v", failures, total, j.Err), time.Time{})
		}
	default: // Busy, Refused, Gone: somebody is there and answers
		b.window.add(false)
	}
}

// blame notes a message whose answer points at a wrong set-up and reports
// whether enough different ones did in a row: a handler may well answer 404 to
// one message that names an unknown order.
func (b *breaker) blame(message string) bool {
	if !slices.Contains(b.blamed, message) {
		b.blamed = append(b.blamed, message)
	}
	return len(b.blamed) >= b.opts.Misconfigure
}

// judgeProbe decides after the one request of the half-open state.
func (b *breaker) judgeProbe(j judged, guard bool) {
	switch j.Verdict {
	case inbox.Done, inbox.Busy, inbox.Gone, inbox.Refused:
		b.close()
	case inbox.NotSent:
		// Stopped from outside; the next one may probe.
	case inbox.Unreachable:
		b.open(unreachable, j.Err.Error(), time.Time{})
	case inbox.Misconfigured:
		c := setup
		if guard {
			c = refusing
		}
		b.open(c, j.Err.Error(), time.Time{})
	default:
		if until, ok := askedPause(j); ok {
			b.open(asked, j.Err.Error(), until)
			return
		}
		b.open(failing, "the probe failed: "+j.Err.Error(), time.Time{})
	}
}

// askedPause reports until when the handler wants to be left alone. Such an
// answer is about the handler and not about the message, so it holds for the
// whole consumer.
func askedPause(j judged) (until time.Time, ok bool) {
	if j.RetryAfter <= 0 || j.Verdict != inbox.NotNow ||
		j.Status != http.StatusTooManyRequests && j.Status != http.StatusServiceUnavailable {
		return time.Time{}, false
	}
	return time.Now().Add(j.RetryAfter), true
}
