package consumer

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/inboxd/inboxd/internal/inbox"
)

// Consumer keeps one consumer registered at one queue for as long as Run runs.
type Consumer struct {
	opts    Options
	handler Handler
	gate    *inbox.Gate
	log     *slog.Logger
	metrics *metrics

	hand     inHand
	flow     *flow
	dialer   dialer
	backoff  backoff
	outage   outage
	patience patience
	noStream bool // the queue was asked about and is none; used by the pump alone

	workers  workers
	handlers sync.WaitGroup // across sessions
	running  atomic.Int64
	stopAt   atomic.Int64 // Unix nanoseconds of the end of Run's ctx
	last     atomic.Int64 // Unix nanoseconds of the last delivery

	mu     sync.Mutex
	status Status
}

// Status is what a Consumer is doing.
type Status struct {
	Connected bool      // there is a connection to the broker
	Consuming bool      // the broker has confirmed the consumer, and it is not being stopped
	Since     time.Time // of Consuming being what it is
	Broker    string    // host:port of the connection, or of the last one
	LastError string    // why the last session was lost or did not come about; "" once consuming
	Sessions  int       // that came to consume
	Running   int       // handlers, those of lost sessions included
	// LastDelivery is zero where there was none.
	LastDelivery time.Time
}

// New returns a Consumer; it does nothing until Run. Several consumers may
// share reg, which may be nil.
func New(o Options, handler Handler, gate *inbox.Gate, log *slog.Logger, reg prometheus.Registerer) *Consumer {
	o = o.withDefaults()
	m := newMetrics(reg, o.Consumer)
	c := &Consumer{
		opts:    o,
		hand:    inHand{limit: o.MaxBytes, metrics: m},
		flow:    o.newFlow(),
		handler: handler,
		gate:    gate,
		log:     log.With("consumer", o.Consumer, "queue", o.Queue),
		metrics: m,
		workers: newWorkers(),
		dialer:  dialer{broker: o.Broker, name: "inboxd " + o.Consumer, repaired: m.repaired},
		backoff: backoff{min: o.Broker.MinBackoff, max: o.Broker.MaxBackoff},
		status:  Status{Since: time.Now()},
	}
	c.dialer.hand = &c.hand
	return c
}

// Run consumes whenever the gate is open, and reconnects for ever, until ctx is
// done. It then stops the consumer, hands back what was not started, waits up
// to Grace for handlers and settles. It returns nil, or an error that says how
// many handlers were left behind. It may be called once.
func (c *Consumer) Run(ctx context.Context) error {
	defer context.AfterFunc(ctx, func() { c.stopAt.Store(time.Now().UnixNano()) })()
	defer c.workers.stop()
	for c.waitOpen(ctx) {
		begun := time.Now()
		if err := c.session(ctx); err != nil && ctx.Err() == nil {
			c.pause(ctx, err, time.Since(begun))
		}
	}
	return c.waitHandlers()
}

// waitOpen waits for the gate; false means that ctx is done.
func (c *Consumer) waitOpen(ctx context.Context) bool {
	for ctx.Err() == nil {
		closures, changed := c.gate.State()
		if len(closures) == 0 {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
	return false
}

// pause reports a lost session and waits before the next.
func (c *Consumer) pause(ctx context.Context, err error, lasted time.Duration) {
	k := kindOf(err)
	c.fail(err)
	if lasted >= stableAfter {
		c.backoff.reset()
	}
	d := c.backoff.next(k)
	if log, skipped := c.outage.report(k, time.Now()); log {
		attrs := []any{"kind", string(k), "err", err, "next_try_in", d.Round(time.Millisecond)}
		if h := k.hint(); h != "" {
			attrs = append(attrs, "hint", h)
		}
		if skipped > 0 {
			attrs = append(attrs, "not_logged", skipped)
		}
		level := slog.LevelWarn
		if k == kindAccess || k == kindTopology || k == kindSetup {
			level = slog.LevelError // a person must act
		}
		c.log.Log(ctx, level, "not consuming", attrs...)
	}
	_, changed := c.gate.State()
	sleep(ctx, d, changed)
}

// waitHandlers waits for handlers that outlived their sessions.
func (c *Consumer) waitHandlers() error {
	if c.running.Load() == 0 {
		return nil
	}
	ended := make(chan struct{})
	go func() { c.handlers.Wait(); close(ended) }()
	select {
	case <-ended:
		return nil
	case <-time.After(c.graceLeft()):
		return fmt.Errorf("%d handlers of consumer %s are still running", c.running.Load(), c.opts.Consumer)
	}
}

// graceLeft returns how long handlers may be waited for from now on.
func (c *Consumer) graceLeft() time.Duration {
	n := c.stopAt.Load()
	if n == 0 {
		return c.opts.Grace
	}
	return max(0, c.opts.Grace-time.Since(time.Unix(0, n)))
}

// Status returns what the consumer is doing. Safe for concurrent use.
func (c *Consumer) Status() Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.status
	s.Running = int(c.running.Load())
	if n := c.last.Load(); n != 0 {
		s.LastDelivery = time.Unix(0, n)
	}
	return s
}

func (c *Consumer) connected(addr string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.status.Connected = true
	c.status.Broker = addr
	c.metrics.state(true, false)
}

func (c *Consumer) consuming(s *session) {
	c.mu.Lock()
	c.status.Consuming = true
	c.status.Since = time.Now()
	c.status.LastError = ""
	c.status.Sessions++
	n := c.status.Sessions
	c.mu.Unlock()
	c.metrics.state(true, true)
	c.metrics.sessions.Inc()
	c.outage = outage{}
	c.log.Info("consuming", "broker", s.conn.addr, "session", n, "consumer_tag", s.tag, "prefetch", s.prefetch)
}

// stopped says that the consumer is not registered any more, or must be taken
// not to be.
func (c *Consumer) stopped(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.status.Consuming {
		c.status.Consuming = false
		c.status.Since = time.Now()
	}
	c.metrics.state(c.status.Connected, false)
	c.metrics.prefetch.Set(0)
	if err != nil {
		c.status.LastError = err.Error()
	}
}

// disconnected says that the socket is closed.
func (c *Consumer) disconnected() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.status.Connected = false
	c.metrics.state(false, false)
}

func (c *Consumer) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.status.LastError = err.Error()
}

func (c *Consumer) delivered(now time.Time) {
	c.last.Store(now.UnixNano())
	c.metrics.lastDelivery.Set(float64(now.UnixMilli()) / 1000)
}

// lastDelivery is when the last delivery came, or the session began.
func (c *Consumer) lastDelivery() time.Time {
	c.mu.Lock()
	since := c.status.Since
	c.mu.Unlock()
	if t := time.Unix(0, c.last.Load()); t.After(since) {
		return t
	}
	return since
}

var (
	hostname, _ = os.Hostname()
	tagCounter  atomic.Uint64
)

// nextTag returns a consumer tag that no other session in the world uses: a tag
// that is taken closes the connection.
func (c *Consumer) nextTag() string {
	unique := "-" + hostname + "-" + strconv.Itoa(os.Getpid()) + "-" + strconv.FormatUint(tagCounter.Add(1), 10)
	const limit = 255 // a short string
	name := "inboxd-" + c.opts.Consumer
	if excess := len(name) + len(unique) - limit; excess > 0 {
		name = name[:max(0, len(name)-excess)]
	}
	return name + unique
}
