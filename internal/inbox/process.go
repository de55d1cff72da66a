package inbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"
)

// Processor takes deliveries of one consumer through their way. The fields are
// set once, before the first call; Process is safe for concurrent use.
type Processor struct {
	Consumer  string
	Identity  Identity
	MissingID MissingIDPolicy
	// AckMismatch acks a message that has a recorded ID and another body as a
	// duplicate; otherwise it is parked.
	AckMismatch bool
	MaxBody     int // bytes; a larger message is parked
	Retry       Retry

	Ledger    Ledger
	Shelf     Shelf
	Parker    Parker // where parked messages go; the Shelf by default
	Forwarder Forwarder
	Log       *slog.Logger
	Metrics   *Metrics

	// Window bounds the requests that a crash repeats. Required.
	Window *Window

	// Probation, where it is on, makes every request go alone. Nil means none.
	Probation *Probation

	// Stop ends the grace of the process: bookkeeping after a 2xx is given up.
	// Nil means never.
	Stop <-chan struct{}

	flights flights
	due     dueSignal
}

// Parker keeps parked messages: a Shelf, or a broker's exchange.
type Parker interface {
	// Park keeps m durably. Afterwards m.ID is the stored message that it is now,
	// or "" where it is kept elsewhere: one that it was stored as goes then.
	Park(ctx context.Context, m *ParkedMessage) error
}

// MissingIDPolicy says what becomes of a message without an ID.
type MissingIDPolicy uint8

// The policies.
const (
	ParkMissingID    MissingIDPolicy = iota
	ForwardMissingID                 // no Idempotency-Key, no record: no deduplication
	RejectMissingID                  // to the queue's dead-letter exchange, or deletion
)

// Process is the whole of inboxd for one delivery:
//
//	identify → join → claim → forward → record → settle
//
// The order is the promise: claim before forward, record before ack. Each
// return names an outcome, which the caller settles with outcome.Decision.
//
// ctx ends when nothing new may be started for this delivery: its session is
// lost, the consumer pauses or the process stops. A request that is being
// written then, and the bookkeeping after it, go on.
func (p *Processor) Process(ctx context.Context, d *Delivery) (res Result) {
	defer func() {
		p.Metrics.count(res)
		if p.Probation.settled(res.Outcome) {
			p.Log.Info("probation is over: messages go side by side again", "consumer", p.Consumer)
		}
	}()

	// identify
	d.FirstReceived = firstOf(d.FirstReceived, d.Received)
	if len(d.Body) > p.MaxBody {
		d.ID, _ = p.Identity.MessageID(&d.Message)
		return p.park(ctx, d, TooLarge, fmt.Errorf("the body has %d bytes, max_body is %d", len(d.Body), p.MaxBody))
	}
	var known bool
	d.ID, known = p.Identity.MessageID(&d.Message)
	d.Fingerprint = p.Identity.FingerprintOf(&d.Message)
	if !known {
		return p.withoutID(ctx, d)
	}

	// join: one delivery of a message at a time, across sessions.
	until := d.Received.Add(p.Retry.Hold)
	ok, before := p.flights.join(ctx, d, until)
	if !ok {
		return returned(ctx)
	}
	defer func() { p.flights.leave(d, res.Outcome) }()

	key := Key{Consumer: p.Consumer, ID: d.ID}
	var lease keptLease
	defer func() { p.releaseLater(lease) }()
	for tries := 0; ; tries++ {
		// claim, before every request: an operator may have recorded the message
		// by now, and in shared mode the handler's own commit shows here even
		// where its answer was an error.
		var err error
		claim, known := before.claim(key, d.Fingerprint)
		entered := false
		switch {
		case known:
		case before == nil && tries == 0 && !d.nearLimit() && !p.alone(d):
			claim, entered, err = p.admit(ctx, key, d.Fingerprint, until)
		default: // it has waited for something else, and those behind it may wait for it
			claim, err = p.claim(ctx, key, d.Fingerprint, until)
		}
		switch {
		case err != nil:
			return p.giveBack(ctx, d, err)
		case claim.Status == ClaimRecorded:
			p.Metrics.duplicateAge.Observe(claim.Age.Seconds())
			return Result{Outcome: Duplicate}
		case claim.Status == ClaimMismatch:
			return p.mismatch(ctx, d, claim)
		}
		lease = keptLease{claim, true}
		if d.nearLimit() && tries == 0 {
			p.release(&lease)
			return p.park(ctx, d, DeliveryLimit, d.errNearLimit())
		}

		// forward
		Failpoint("before-request")
		answer := p.forward(ctx, d, until, entered)
		if answer.Verdict == Done {
			// record: the application has the message, but nothing durable says
			// so yet. A crash here costs one more request, never a message.
			Failpoint("after-2xx")
			err := p.record(ctx, claim, until)
			p.Window.leave(1)
			Failpoint("after-record")
			if err == nil {
				lease.kept = false
				return Result{Outcome: Processed}
			}
			if !errors.Is(err, ErrNoEvidence) {
				return Result{Outcome: Returned, Err: fmt.Errorf("record: %w", err)}
			}
			d.Last = Answer{Verdict: Failed, Status: answer.Status, Excerpt: answer.Excerpt, Err: err}
		}

		// settle, or wait and try again.
		if answer.Verdict != NoAnswer {
			// After a request without an answer the handler may still be at
			// work: the lease is kept for a while, so that no other replica
			// starts a second request beside it.
			p.release(&lease)
		}
		if answer.Verdict == NotSent || p.stopped() {
			return p.giveBack(ctx, d, answer.Err)
		}
		if reason := p.Retry.account(d); reason != NoReason {
			return p.park(ctx, d, reason, d.Last.Err)
		}
		wait := p.Retry.delay(d.Last, tries)
		if p.mustDefer(ctx, d, wait, until) {
			return p.deferUntil(ctx, d, time.Now().Add(wait))
		}
		if !sleep(ctx, wait) {
			return p.giveBack(ctx, d, context.Cause(ctx))
		}
	}
}

// withoutID follows on_missing_id. Inventing an ID is not among the choices: a
// random one switches deduplication off in silence.
func (p *Processor) withoutID(ctx context.Context, d *Delivery) Result {
	switch {
	case p.MissingID == ForwardMissingID:
		return p.forwardUnkeyed(ctx, d)
	case p.MissingID == RejectMissingID && d.StoredID == "": // no broker waits for a stored one
		return Result{Outcome: Rejected, Err: ErrNoMessageID}
	default:
		return p.park(ctx, d, MissingID, ErrNoMessageID)
	}
}

// ErrNoMessageID says that no configured source gave a message ID.
var ErrNoMessageID = errors.New("no source in message_id gave an ID")

// forwardUnkeyed is the way of a message without an ID where the user asked to
// forward those: at least once, nothing claimed, nothing recorded.
func (p *Processor) forwardUnkeyed(ctx context.Context, d *Delivery) Result {
	if d.nearLimit() {
		return p.park(ctx, d, DeliveryLimit, d.errNearLimit())
	}
	until := d.Received.Add(p.Retry.Hold)
	for tries := 0; ; tries++ {
		switch a := p.forward(ctx, d, until, false); a.Verdict {
		case Done:
			p.Window.leave(1)
			p.Metrics.unkeyed.Inc()
			return Result{Outcome: Processed}
		case NotSent:
			return p.giveBack(ctx, d, a.Err)
		}
		if p.stopped() {
			return p.giveBack(ctx, d, d.Last.Err)
		}
		if reason := p.Retry.account(d); reason != NoReason {
			return p.park(ctx, d, reason, d.Last.Err)
		}
		wait := p.Retry.delay(d.Last, tries)
		if p.mustDefer(ctx, d, wait, until) {
			return p.deferUntil(ctx, d, time.Now().Add(wait))
		}
		if !sleep(ctx, wait) {
			return p.giveBack(ctx, d, context.Cause(ctx))
		}
	}
}

// mustDefer reports whether d is not kept in hand for the wait before its next
// attempt: its hold would end, or the whole queue stands still behind it.
func (p *Processor) mustDefer(ctx context.Context, d *Delivery, wait time.Duration, until time.Time) bool {
	if time.Now().Add(wait).After(until) {
		return true
	}
	switch d.Last.Verdict {
	case Unreachable, NotNow, Gone: // the others could do nothing either
		return false
	default:
		return d.Single && ctx.Err() == nil
	}
}

// forward sends one request. The wait before it ends with the hold of the
// delivery, the request itself does not. After a 2xx the place in the window is
// still taken: the caller gives it back once it has recorded. entered says that
// the delivery has its place already.
func (p *Processor) forward(ctx context.Context, d *Delivery, until time.Time, entered bool) Answer {
	leave := p.leaveOne
	if !entered {
		var err error
		if leave, err = p.enter(ctx, p.alone(d), until); err != nil {
			return Answer{Verdict: NotSent, Err: err}
		}
	}
	hold := holdContext{Context: ctx, until: until}
	defer hold.end()
	before := d.Requests
	a := p.Forwarder.Forward(&hold, d)
	p.Metrics.requests.Add(uint64(d.Requests - before))
	leave(a.Verdict == Done)
	if a.Verdict != NotSent {
		d.Last = a
	}
	if a.Verdict.Sent() {
		d.Suspect = a.Cut
	}
	return a
}

// admit claims in the company of others and takes a place in the window where the
// message is new; entered says so. What is to be asked again, claim asks.
func (p *Processor) admit(ctx context.Context, key Key, fp Fingerprint, until time.Time) (c Claim, entered bool, err error) {
	asked := Claiming{Claim: Claim{Key: key, Fingerprint: fp, Status: ClaimHeld}}
	err = p.Window.admit(ctx, &asked, until, p.Ledger.ClaimAll)
	switch {
	case err != nil && asked.Err == nil && asked.Status == ClaimNew:
		p.Ledger.Release(asked.Claim)
		fallthrough
	case err != nil:
		return Claim{}, false, fmt.Errorf("claim: %w", err)
	case asked.Err == nil && asked.Status != ClaimHeld:
		return asked.Claim, asked.Status == ClaimNew, nil
	}
	if err := p.waitToClaim(ctx, 0, until, asked.Err); err != nil {
		return Claim{}, false, err
	}
	c, err = p.claim(ctx, key, fp, until)
	return c, false, err
}

// claim asks the ledger until it gives a definite answer. Nothing is forwarded
// unchecked: while the store does not answer, or another replica holds the
// message, the delivery waits, and goes back when ctx or its hold ends.
func (p *Processor) claim(ctx context.Context, key Key, fp Fingerprint, until time.Time) (Claim, error) {
	for tries := 0; ; tries++ {
		c, err := p.Ledger.Claim(ctx, key, fp)
		if err == nil && c.Status != ClaimHeld {
			return c, nil
		}
		if err := p.waitToClaim(ctx, tries, until, err); err != nil {
			return Claim{}, err
		}
	}
}

// waitToClaim waits after a claim without a definite answer, whose error is err, or
// nil where another replica holds the message.
func (p *Processor) waitToClaim(ctx context.Context, tries int, until time.Time, err error) error {
	if err == nil {
		err = errHeldElsewhere
	}
	wait := jitter(backoff(storeBackoff, storeBackoffMax, tries))
	if ctx.Err() != nil || time.Now().Add(wait).After(until) || !sleep(ctx, wait) {
		return fmt.Errorf("claim: %w", err)
	}
	return nil
}

var errHeldElsewhere = errors.New("another replica is processing the message")

// record makes the 2xx durable. Every store error means "unknown", so the same
// idempotent record is repeated until it succeeds; the request never is. Neither
// a lost session nor a stop of the consumer ends this, only the end of the
// process's grace, or of the hold: the broker then has the message again, and
// the next request carries the same key.
func (p *Processor) record(ctx context.Context, c Claim, until time.Time) error {
	ctx = context.WithoutCancel(ctx)
	for tries := 0; ; tries++ {
		err := p.Ledger.Record(ctx, c)
		if err == nil || errors.Is(err, ErrNoEvidence) {
			return err
		}
		wait := jitter(backoff(storeBackoff, storeBackoffMax, tries))
		if time.Now().Add(wait).After(until) || !p.pause(wait) {
			return err
		}
	}
}

// mismatch follows on_mismatch: one ID, two bodies, so not a duplicate but two
// messages.
func (p *Processor) mismatch(ctx context.Context, d *Delivery, c Claim) Result {
	p.Metrics.mismatches.Inc()
	if p.AckMismatch {
		p.Metrics.duplicateAge.Observe(c.Age.Seconds())
		return Result{Outcome: Duplicate}
	}
	return p.park(ctx, d, Mismatch, fmt.Errorf("a message with this ID and another body was processed at %s",
		c.RecordedAt.UTC().Format(time.RFC3339)))
}

// giveBack ends the way of a delivery that could not be finished. It goes back
// to the broker, or, where it came from the store, is put back by the caller.
// One that ran out of its hold with requests behind it is deferred: back on the
// queue its attempts would be forgotten.
func (p *Processor) giveBack(ctx context.Context, d *Delivery, err error) Result {
	if ctx.Err() == nil && d.Requests > 0 {
		return p.deferUntil(ctx, d, time.Now().Add(p.Retry.delay(d.Last, 0)))
	}
	if err == nil {
		err = context.Cause(ctx)
	}
	return Result{Outcome: Returned, Err: err}
}

func returned(ctx context.Context) Result {
	return Result{Outcome: Returned, Err: context.Cause(ctx)}
}
