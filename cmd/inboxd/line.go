package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/inboxd/inboxd/internal/admin"
	"github.com/inboxd/inboxd/internal/config"
	"github.com/inboxd/inboxd/internal/consumer"
	"github.com/inboxd/inboxd/internal/forward"
	"github.com/inboxd/inboxd/internal/inbox"
	"github.com/inboxd/inboxd/internal/store"
	"github.com/inboxd/inboxd/internal/store/shared"
)

// line is everything of one consumer, from its queue to its handler.
type line struct {
	cfg       config.Consumer
	gate      *inbox.Gate
	forwarder *forward.Forwarder
	processor *inbox.Processor
	consumer  *consumer.Consumer
	shared    *shared.Ledger      // nil in ledger mode
	publisher *consumer.Publisher // nil where the store keeps parked messages
	metrics   *inbox.Metrics
	probation *inbox.Probation // nil after a clean stop
	room      int64            // bytes for messages in hand
}

// buildLines makes the parts of every consumer; nothing runs yet.
func (d *daemon) buildLines(ctx context.Context, st store.Store) error {
	paused, err := st.Paused(ctx)
	if err != nil {
		return fmt.Errorf("reading which consumers are paused: %w", err)
	}
	metrics := inbox.NewMetrics(d.reg)
	for _, cc := range d.cfg.Consumers {
		l, err := d.buildLine(ctx, cc, st, metrics.For(cc.Name))
		if err != nil {
			return fmt.Errorf("consumer %s: %w", cc.Name, err)
		}
		d.lines = append(d.lines, l)
		if why, ok := paused[cc.Name]; ok {
			l.gate.Shut(inbox.HindrancePaused, why)
			d.log.Warn("consumer is paused; `inboxd resume` ends that", "consumer", cc.Name, "why", why)
		}
	}
	return nil
}

func (d *daemon) buildLine(ctx context.Context, cc config.Consumer, st store.Store, m *inbox.Metrics) (*line, error) {
	l := &line{cfg: cc, gate: inbox.NewGate(), metrics: m}
	fo, err := forwardOptions(cc)
	if err != nil {
		return nil, fmt.Errorf("forward.status: %w", err)
	}
	fo.Evidence = l.evidence(cc)
	if d.tune != nil {
		d.tune(&fo)
	}
	fo.OnGone = func(why string) { d.keepPause(st, cc.Name, why) }
	if l.forwarder, err = forward.New(fo, l.gate, d.log, d.reg); err != nil {
		return nil, fmt.Errorf("forward: %w", err)
	}
	co := consumerOptions(d.cfg, cc)
	if st.UncleanStop() {
		l.probation = inbox.NewProbation(co.Prefetch, co.MostInHand())
		d.log.Warn("probation: inboxd was ended in the middle of its work, perhaps by a message, so messages go one at a time at first",
			"consumer", cc.Name, "messages", co.MostInHand())
	}
	l.processor = &inbox.Processor{
		Consumer:    cc.Name,
		Identity:    identity(cc),
		MissingID:   missingID(cc.OnMissingID),
		AckMismatch: cc.OnMismatch == config.OnMismatchAck,
		MaxBody:     int(cc.MaxBody),
		Retry:       retry(cc.Retry),
		Ledger:      st,
		Shelf:       st,
		Parker:      st,
		Forwarder:   l.forwarder,
		Window:      inbox.NewWindow(cc.Concurrency),
		Log:         d.log,
		Metrics:     m,
		Probation:   l.probation,
		Stop:        d.stop,
	}
	if !cc.Inbox.URL.IsZero() {
		if l.shared, err = d.openShared(ctx, cc); err != nil {
			return nil, err
		}
		// Without leases too: what the store has recorded, by hand or before the
		// consumer came to shared mode, is not to be forwarded again.
		l.processor.Ledger = shared.Lease(l.shared, st)
	}
	if cc.Park.ToBroker {
		l.publisher = consumer.NewPublisher(publisherOptions(d.cfg, cc), d.log.With("consumer", cc.Name))
		l.processor.Parker = parker{l.publisher, st}
	}
	co.Careful = l.careful
	l.room = co.MaxBytes
	l.consumer = consumer.New(co, l.processor.Process, l.gate, d.log, d.reg)
	return l, nil
}

// careful says to take one message at a time from the broker: while one may be
// what killed the daemon, and while one is to show whether the handler is well
// again, whose failure would send everything in hand back to the queue.
func (l *line) careful() bool {
	return l.probation.On() || l.forwarder.Status().Breaker != forward.BreakerClosed
}

// evidence says in shared mode whether the handler has committed a message
// although its answer does not say so. The look-up has its own short time limit.
func (l *line) evidence(cc config.Consumer) func(*inbox.Delivery) bool {
	if cc.Inbox.URL.IsZero() {
		return nil
	}
	return func(d *inbox.Delivery) bool {
		c, err := l.shared.Claim(context.Background(), inbox.Key{Consumer: cc.Name, ID: d.ID}, d.Fingerprint)
		return err == nil && d.ID != "" && c.Status == inbox.ClaimRecorded
	}
}

// openShared waits for the service's database; a table that cannot keep the
// promise is an error at once.
func (d *daemon) openShared(ctx context.Context, cc config.Consumer) (*shared.Ledger, error) {
	pause := 200 * time.Millisecond
	for {
		led, err := shared.Open(ctx, sharedOptions(cc), d.log, d.reg)
		var refused *shared.RefusedError
		if err == nil || errors.As(err, &refused) || ctx.Err() != nil {
			return led, err
		}
		d.log.Warn("the shared inbox cannot be opened yet; nothing is consumed", "consumer", cc.Name, "err", err, "next_try_in", pause)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		pause = min(2*pause, openRetryMax)
	}
}

// run starts the parts of the line in g.
func (l *line) run(ctx context.Context, g *errgroup.Group) {
	g.Go(func() error { return l.forwarder.Run(ctx) })
	g.Go(func() error { return l.consumer.Run(ctx) })
	// Messages from the store share the forwarder's slots with those from the
	// queue; a part of the concurrency keeps them from starving it.
	g.Go(func() error { return l.processor.RunDue(ctx, l.gate, l.atOnce()) })
	if l.shared != nil {
		g.Go(func() error { return l.shared.Run(ctx) })
	}
}

// atOnce is how many messages from the store may be in work. Their bodies are not
// counted with those from the queue, so that no more are taken than fit beside
// them if they are the largest ones.
func (l *line) atOnce() int {
	return max(1, min(l.cfg.Concurrency/2, int(l.room/int64(l.cfg.MaxBody))))
}

// awaitIdle waits until nothing of the line is in work, or until stop and a
// moment more.
func (l *line) awaitIdle(stop <-chan struct{}) {
	var limit <-chan time.Time
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		s := l.consumer.Status()
		if held, _ := l.processor.Held(); held == 0 && l.processor.TakingUp() == 0 && !s.Connected && s.Running == 0 {
			return
		}
		select {
		case <-tick.C:
		case <-stop:
			stop, limit = nil, time.After(time.Second)
		case <-limit:
			return
		}
	}
}

// closeLines gives up what the lines hold open.
func (d *daemon) closeLines() {
	for _, l := range d.lines {
		if l.publisher != nil {
			if err := l.publisher.Close(); err != nil {
				d.log.Warn("closing the parking connection", "consumer", l.cfg.Name, "err", err)
			}
		}
		if l.shared != nil {
			if err := l.shared.Close(); err != nil {
				d.log.Warn("closing the shared inbox", "consumer", l.cfg.Name, "err", err)
			}
		}
	}
}

// status is the line's part of GET /api/status and of /consuming.
func (l *line) status() admin.ConsumerStatus {
	closures, _ := l.gate.State()
	s, f := l.consumer.Status(), l.forwarder.Status()
	held, oldest := l.processor.Held()
	c := admin.ConsumerStatus{
		Name:       l.cfg.Name,
		Queue:      l.cfg.Queue,
		Consuming:  s.Consuming && len(closures) == 0,
		Hindrances: closures,
		Session:    admin.SessionStatus{State: admin.SessionConnecting, Since: s.Since, Error: s.LastError},
		Breaker:    admin.BreakerStatus{State: string(f.Breaker), Why: f.Reason, Since: f.Since},
		InFlight:   f.InFlight,
		Held:       held, Concurrency: l.cfg.Concurrency,
	}
	if left, since := l.probation.State(); left > 0 {
		c.Probation = &admin.ProbationStatus{Since: since, Left: left}
	}
	switch {
	case s.Consuming:
		c.Session.State = admin.SessionConsuming
	case len(closures) > 0:
		c.Session.State = admin.SessionIdle
	}
	if !oldest.IsZero() {
		c.OldestSeconds = time.Since(oldest).Seconds()
	}
	n := l.metrics.Counts()
	c.Counters = admin.Counters{
		Processed: n[inbox.Processed], Duplicate: n[inbox.Duplicate], Parked: n[inbox.Parked],
		Deferred: n[inbox.Deferred], Returned: n[inbox.Returned], Rejected: n[inbox.Rejected],
		Requests: l.metrics.Requests(),
	}
	return c
}
