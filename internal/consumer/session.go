package consumer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/inboxd/inboxd/internal/inbox"
)

// session is one connection with one channel and one consumer on it. It is
// never repaired: any failure of any part ends it, and the next one starts
// from the dial.
type session struct {
	c    *Consumer
	conn *connection
	ch   *amqp.Channel
	tag  string
	book *book
	// limit is the queue's delivery limit, 0 for none.
	limit   int64
	careful bool // see Options.Careful
	tuning

	ctx  context.Context // done: handlers start nothing new
	stop context.CancelFunc

	running  sync.WaitGroup // everything of the session but handlers
	draining atomic.Bool
	once     sync.Once
	lost     chan struct{} // closed once err is set
	err      error
}

// errDeliveriesEnded is the net below NotifyClose and NotifyCancel.
var errDeliveriesEnded = errors.New("the deliveries ended without a reason")

// session runs one session from dial to close. It returns nil after a graceful
// end (ctx done or the gate shut) and otherwise why the session was lost or did
// not come about. All its goroutines but late handlers have ended then, and its
// socket is closed, so that two sessions never overlap.
func (c *Consumer) session(ctx context.Context) error {
	conn, err := c.dialer.dial(ctx)
	if err != nil {
		return err
	}
	c.connected(conn.addr)
	s := &session{
		c: c, conn: conn, limit: c.opts.deliveryLimit(conn.Properties),
		careful: c.opts.Careful != nil && c.opts.Careful(),
		lost:    make(chan struct{}),
	}
	s.stirred = make(chan struct{}, 1)
	s.intake, s.flow, s.prefetch = conn.link.intake, c.flow, c.flow.first()
	if s.careful {
		s.flow, s.prefetch = &flow{least: 1, most: 1, limit: c.flow.limit, steady: true}, 1
	}
	s.book = newBook(s.prefetch)
	// The end of ctx reaches the handlers through drain, which must come first.
	s.ctx, s.stop = context.WithCancel(context.WithoutCancel(ctx))
	defer s.stop()

	if !c.gate.IsOpen() {
		// Shut during the dial: a drain may have taken us for idle already.
		s.hangUp()
		return nil
	}
	if err := s.begin(ctx); err != nil {
		s.hangUp()
		return err
	}
	c.consuming(s)

	settled := make(chan struct{})
	s.running.Go(func() { defer close(settled); s.settler() })
	s.startPump()

	if reason := s.serve(ctx); reason != "" {
		c.log.Info("consumer stops", "reason", reason, "in_hand", s.book.inHand())
		s.drain(settled, reason == reasonRenew)
	}
	return s.end()
}

// begin opens the channel and registers the consumer.
func (s *session) begin(ctx context.Context) error {
	stop := context.AfterFunc(ctx, s.conn.link.sever)
	defer stop()
	call := func(what string, f func() error) error {
		err := s.call(what, f)
		if err != nil && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return err
	}

	err := call("opening a channel", func() (err error) { s.ch, err = s.conn.Channel(); return err })
	if err != nil {
		return err
	}
	closes := s.ch.NotifyClose(make(chan *amqp.Error, 1))
	cancels := s.ch.NotifyCancel(make(chan string, 1))

	o := s.c.opts
	err = call("declaring queue "+o.Queue, func() error { return declare(s.ch, o) })
	if err != nil {
		return err
	}
	if err = s.register(call); err != nil {
		return err
	}
	s.running.Go(func() { s.listen(closes, cancels) })
	return nil
}

// declare makes sure that the queue is there: by looking, unless the user asked
// for it to be declared.
func declare(ch *amqp.Channel, o Options) error {
	if o.Declare == nil {
		_, err := ch.QueueDeclarePassive(o.Queue, true, false, false, false, nil)
		return err
	}
	args := amqpTable(o.Declare.Arguments)
	if o.Declare.Type != "" {
		if args == nil {
			args = amqp.Table{}
		}
		args[amqp.QueueTypeArg] = o.Declare.Type
	}
	_, err := ch.QueueDeclare(o.Queue, true, false, false, false, args)
	return err
}

// listen ends the session when the broker ends any part of it. Both channels
// are closed with the AMQP channel, so that this goroutine always ends.
func (s *session) listen(closes <-chan *amqp.Error, cancels <-chan string) {
	select {
	case e := <-closes:
		s.lose(closeError(e))
	case _, ok := <-cancels:
		if ok {
			s.lose(errCancelled)
			return
		}
		s.lose(closeError(<-closes))
	}
}

func closeError(e *amqp.Error) error {
	if e == nil {
		return errors.New("the channel was closed")
	}
	if e.Server {
		return fmt.Errorf("closed by the broker: %w", e)
	}
	return fmt.Errorf("connection broke: %w", e)
}

// lose marks the session lost, once. Handlers learn of it through their ctx.
func (s *session) lose(err error) {
	s.once.Do(func() {
		s.err = err
		close(s.lost)
		s.stop()
	})
}

// pump takes deliveries off the library as fast as they come, registers them in
// their order and starts a handler for each. The prefetch bounds how many that
// are. What comes after the stop goes back untouched.
func (s *session) pump(deliveries <-chan amqp.Delivery) {
	for raw := range deliveries {
		now := time.Now()
		if raw.DeliveryTag != s.tags+1 {
			// The library drops what comes for a tag that it does not know any more. The
			// next ack with multiple would cover it, and it would never be processed.
			s.lose(fmt.Errorf("delivery %d came after %d: one is missing", raw.DeliveryTag, s.tags))
			continue
		}
		s.tags++
		counted, size, stripped := s.intake.claim(raw.DeliveryTag, int64(len(raw.Body)))
		s.c.flow.sizes.add(size)
		h := &held{tag: raw.DeliveryTag, size: counted}
		fill(&h.Delivery, &raw, s.c.opts.Queue, now)
		h.DeliveryLimit, h.Single = s.limit, s.careful
		s.book.add(h)
		s.stir()
		s.c.delivered(now)
		if stripped || s.ctx.Err() != nil || s.refuseStream(&h.Delivery) {
			s.settle(h, inbox.Result{Outcome: inbox.Returned})
			continue
		}
		s.c.handlers.Add(1)
		s.c.running.Add(1)
		s.c.workers.start(job{s, h})
	}
	if !s.draining.Load() && !s.changing.Load() {
		// The notice of why is under way: it is sent before the deliveries end.
		select {
		case <-s.lost:
		case <-time.After(time.Second):
			s.lose(errDeliveriesEnded)
		}
	}
}

func (s *session) handle(h *held) {
	defer s.c.handlers.Done()
	defer s.c.running.Add(-1)
	s.settle(h, s.c.handler(s.ctx, &h.Delivery))
}

func (s *session) settle(h *held, r inbox.Result) {
	if !s.book.settle(h, r) {
		s.c.recordSettled(h, errSessionGone)
	}
}

// errSessionGone is why a settlement was dropped.
var errSessionGone = errors.New("the session that delivered it is gone; the broker delivers it again")

// reasonRenew is why a careful session ends; the next one begins at once.
const reasonRenew = "the full prefetch is safe again"

// renewPatience is how long the delivery in hand may take then. Whatever goes
// back to the queue has one delivery more against it.
const renewPatience = time.Second

// serve waits until the session ends. It returns why it is to end gracefully,
// or "" where it is lost.
func (s *session) serve(ctx context.Context) string {
	check := time.NewTicker(stallCheckEvery)
	defer check.Stop()
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for {
		closures, changed := s.c.gate.State()
		if len(closures) > 0 {
			return string(closures[0].Hindrance)
		}
		select {
		case <-s.lost:
			return ""
		case <-ctx.Done():
			return "stop"
		case <-changed:
		case <-look.C:
			if s.careful && !s.c.opts.Careful() {
				return reasonRenew
			}
			s.adapt()
			if !s.careful && s.rest() {
				look.Stop()
			}
		case <-s.stirred:
			look.Reset(lookEvery)
		case <-check.C:
			if err := s.checkStall(); err != nil {
				s.lose(err)
			}
		}
	}
}

// drain ends the consumer in order: no new deliveries, those that were not
// started go back, the others are waited for and settled. A renewal gives what
// was not started a moment to get done.
func (s *session) drain(settled <-chan struct{}, renewal bool) {
	s.draining.Store(true)
	s.book.hold()
	s.intake.setStripping(true)
	if renewal {
		defer time.AfterFunc(renewPatience, s.stop).Stop()
	} else {
		s.stop()
	}
	s.c.stopped(nil)
	if err := s.cancel(); err != nil {
		s.lose(err)
		return
	}
	s.book.finish(false)
	grace := time.NewTimer(s.c.graceLeft())
	defer grace.Stop()
	select {
	case <-settled:
		return
	case <-s.lost:
		return
	case <-grace.C:
	}
	s.c.log.Warn("handlers outlast the grace; their deliveries go back to the queue", "in_hand", s.book.inHand())
	s.book.finish(true)
	<-settled
}

// end closes the session and returns why it was lost, nil where it was not.
// The broker requeues what is unsettled.
func (s *session) end() error {
	var err error
	select {
	case <-s.lost:
		err = s.err
	default:
	}
	s.c.stopped(err)
	left := s.book.kill()
	if err == nil {
		// The broker answers after it has seen every ack before it.
		_ = s.call("closing the channel", s.ch.Close)
	}
	s.hangUp()
	s.running.Wait()
	for _, h := range left {
		s.c.recordSettled(h, errSessionGone)
	}
	return err
}

// hangUp closes the connection: with a word to the broker where there is still
// somebody to hear it, and then the socket whatever happened.
func (s *session) hangUp() {
	s.conn.link.intake.setStripping(true) // the answer must come through
	if !s.conn.IsClosed() {
		_ = s.call("closing the connection", s.conn.Close)
	}
	s.conn.link.sever()
	s.c.disconnected()
}

func (s *session) call(what string, f func() error) error {
	return s.conn.link.watch(s.c.opts.Broker.RPCTimeout, what, f)
}
