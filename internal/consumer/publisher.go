package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/inboxd/inboxd/internal/inbox"
)

// ErrBodyTooLarge is returned by Park for a body that the broker would refuse.
var ErrBodyTooLarge = errors.New("the message is larger than the parking exchange takes")

// ErrUnroutable is returned by Park where the broker returned the message: no
// queue is bound to the parking exchange for its routing key.
var ErrUnroutable = errors.New("no queue takes parked messages")

// errBlocked is returned by Park while the broker has a memory or disk alarm.
var errBlocked = errors.New("the broker takes no messages: it has a resource alarm")

// PublisherOptions is the configuration of a Publisher.
type PublisherOptions struct {
	Broker Broker
	// Name tells its connection from others in the broker's tools.
	Name string
	// Exchange and RoutingKey are where parked messages go.
	Exchange, RoutingKey string
	// MaxBody is the largest body to publish; default 128 MiB, the limit of
	// RabbitMQ before 4.0. One that the broker itself refuses is ErrBodyTooLarge
	// too.
	MaxBody int
	// Timeout bounds one Park where its ctx does not; default 15 s.
	Timeout time.Duration
}

const (
	defaultMaxBody     = 128 << 20
	defaultParkTimeout = 15 * time.Second
)

// Publisher parks messages at the broker. It has a connection of its own, made
// when it is needed: a broker with an alarm stops reading from connections that
// publish, and acks behind the message would be stuck. Safe for concurrent use;
// one message is published at a time.
type Publisher struct {
	opts   PublisherOptions
	log    *slog.Logger
	dialer dialer

	turn chan struct{} // holds one token: the right to use what is below
	line *line         // nil: not connected
}

// line is one connection for publishing. Like a session it is never repaired.
type line struct {
	conn    *connection
	ch      *amqp.Channel
	timeout time.Duration
	returns chan amqp.Return
	closes  chan *amqp.Error
	stale   bool // a confirm was given up: a late return could be taken for another's

	mu      sync.Mutex
	blocked bool
	changed chan struct{} // closed when blocked changes
}

// NewPublisher returns a Publisher; it connects when first used.
func NewPublisher(o PublisherOptions, log *slog.Logger) *Publisher {
	o.Broker = o.Broker.withDefaults()
	setDefault(&o.Timeout, defaultParkTimeout)
	if o.MaxBody <= 0 {
		o.MaxBody = defaultMaxBody
	}
	p := &Publisher{
		opts:   o,
		log:    log,
		dialer: dialer{broker: o.Broker, name: "inboxd parking " + o.Name},
		turn:   make(chan struct{}, 1),
	}
	p.turn <- struct{}{}
	return p
}

// Park publishes m, persistent and mandatory, and returns nil once the broker
// has confirmed it; m.ID is cleared then, for no store keeps it. Any error means that the message may or may not have been
// published, and that repeating the call is right, except for ErrBodyTooLarge.
func (p *Publisher) Park(ctx context.Context, m *inbox.ParkedMessage) error {
	if len(m.Body) > p.opts.MaxBody {
		return fmt.Errorf("%w: %d bytes, limit %d", ErrBodyTooLarge, len(m.Body), p.opts.MaxBody)
	}
	ctx, cancel := context.WithTimeout(ctx, p.opts.Timeout)
	defer cancel()
	select {
	case <-p.turn:
		defer func() { p.turn <- struct{}{} }()
	case <-ctx.Done():
		return fmt.Errorf("parking: waiting for earlier messages: %w", ctx.Err())
	}
	l, err := p.connect(ctx)
	if err != nil {
		return fmt.Errorf("parking: %w", err)
	}
	if err := l.publish(ctx, p.opts, parking(m, l.conn.Config.FrameSize)); err != nil {
		if !l.usable() {
			p.drop()
		}
		return fmt.Errorf("parking to exchange %q, routing key %q: %w", p.opts.Exchange, p.opts.RoutingKey, err)
	}
	m.ID = ""
	return nil
}

// Close closes the connection, if there is one. Park after Close reconnects.
func (p *Publisher) Close() error {
	<-p.turn
	defer func() { p.turn <- struct{}{} }()
	p.drop()
	return nil
}

func (p *Publisher) drop() {
	if p.line != nil {
		p.line.hangUp()
		p.line = nil
	}
}

// connect returns a line that may publish now.
func (p *Publisher) connect(ctx context.Context) (*line, error) {
	if p.line != nil {
		// Under an alarm the connection is kept: a new one would take one more
		// copy of the message into its socket before it is blocked.
		if err := p.line.awaitUnblocked(ctx); err != nil {
			return nil, err
		}
		if p.line.stale || p.line.ch.IsClosed() {
			p.drop()
		}
	}
	if p.line != nil {
		return p.line, nil
	}
	l, err := p.open(ctx)
	if err != nil {
		return nil, err
	}
	p.line = l
	return l, nil
}

func (p *Publisher) open(ctx context.Context) (*line, error) {
	conn, err := p.dialer.dial(ctx)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, conn.link.sever)
	defer stop()
	l := &line{conn: conn, timeout: p.opts.Broker.RPCTimeout, changed: make(chan struct{})}
	go l.listen(conn.NotifyBlocked(make(chan amqp.Blocking, 8)))
	err = l.call("opening a channel", func() (err error) {
		if l.ch, err = conn.Channel(); err != nil {
			return err
		}
		return l.ch.Confirm(false)
	})
	if err != nil {
		l.hangUp()
		return nil, err
	}
	l.returns = l.ch.NotifyReturn(make(chan amqp.Return, 1))
	l.closes = l.ch.NotifyClose(make(chan *amqp.Error, 1))
	p.log.Info("connected for parking", "broker", conn.addr, "exchange", p.opts.Exchange, "routing_key", p.opts.RoutingKey)
	return l, nil
}

// publish sends one message and waits for its confirm. A return comes before
// the confirm, and there is no other message under way.
func (l *line) publish(ctx context.Context, o PublisherOptions, m amqp.Publishing) error {
	var confirm *amqp.DeferredConfirmation
	deadline, _ := ctx.Deadline()
	err := l.conn.link.watch(time.Until(deadline), "publishing", func() (err error) {
		confirm, err = l.ch.PublishWithDeferredConfirm(o.Exchange, o.RoutingKey, true, false, m)
		return err
	})
	if err != nil {
		return l.refine(err)
	}
	select {
	case <-confirm.Done():
	case <-ctx.Done():
		l.stale = true
		if l.isBlocked() {
			return errBlocked
		}
		return fmt.Errorf("waiting for the broker's confirm: %w", ctx.Err())
	}
	select {
	case r := <-l.returns:
		if r.ReplyCode != 0 {
			return fmt.Errorf("%w: %d %s", ErrUnroutable, r.ReplyCode, r.ReplyText)
		}
	default:
	}
	if !confirm.Acked() {
		return l.refine(errors.New("the broker refused the message (its queue is full, or not available)"))
	}
	return nil
}

// refine replaces err by why the channel was closed, where it was.
func (l *line) refine(err error) error {
	select {
	case e := <-l.closes:
		if e == nil {
			return err
		}
		l.stale = true
		if e.Code == amqp.PreconditionFailed || e.Code == amqp.ContentTooLarge {
			return fmt.Errorf("%w: %w", ErrBodyTooLarge, e)
		}
		return closeError(e)
	default:
		return err
	}
}

// usable reports whether the line may serve the next message, now or after the
// alarm.
func (l *line) usable() bool {
	return !l.ch.IsClosed() && (!l.stale || l.isBlocked())
}

func (l *line) listen(blocks <-chan amqp.Blocking) {
	for b := range blocks {
		l.mu.Lock()
		l.blocked = b.Active
		close(l.changed)
		l.changed = make(chan struct{})
		l.mu.Unlock()
	}
	l.mu.Lock() // the connection is closed: nobody need wait for it
	l.blocked = false
	close(l.changed)
	l.changed = make(chan struct{})
	l.mu.Unlock()
}

func (l *line) isBlocked() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.blocked
}

func (l *line) awaitUnblocked(ctx context.Context) error {
	for {
		l.mu.Lock()
		blocked, changed := l.blocked, l.changed
		l.mu.Unlock()
		if !blocked {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return errBlocked
		}
	}
}

// hangUp closes the connection, with a word to the broker where it is likely to
// listen.
func (l *line) hangUp() {
	if !l.stale && !l.conn.IsClosed() && !l.isBlocked() {
		_ = l.call("closing the connection", l.conn.Close)
	}
	l.conn.link.sever()
}

func (l *line) call(what string, f func() error) error {
	return l.conn.link.watch(l.timeout, what, f)
}
