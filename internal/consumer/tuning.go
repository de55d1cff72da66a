package consumer

import (
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// tuning is the part of a session that changes its prefetch. A prefetch holds for
// a consumer tag from its registration on (quorum queues know no other), so that
// a change is a cancel and a new registration on the same channel. What is in hand
// stays in hand: delivery tags belong to the channel.
type tuning struct {
	intake     *intake
	flow       *flow
	prefetch   int
	deliveries <-chan amqp.Delivery
	pumped     chan struct{} // closed when the pump of the last registration has ended

	resting atomic.Bool   // nobody looks: nothing is in hand
	stirred chan struct{} // something is again

	tags       uint64 // the last delivery's; used by the pump alone
	registered bool
	changing   atomic.Bool // the pump is to end without a loss
	// While not registered:
	want    int
	refused int64 // the largest body that there was no room for
	since   time.Time
}

// fill waits so long at most, and is not tried again for fillAgain.
const (
	fillTries = 50
	fillPause = time.Millisecond
	fillAgain = 2 * time.Second
)

// register makes the consumer known to the broker, with the prefetch.
func (s *session) register(call func(what string, f func() error) error) error {
	queue := s.c.opts.Queue
	err := call("setting prefetch", func() error { return s.ch.Qos(s.prefetch, 0, false) })
	if err != nil {
		return err
	}
	s.tag = s.c.nextTag()
	err = call("consuming from queue "+queue, func() (err error) {
		s.deliveries, err = s.ch.Consume(queue, s.tag, false, false, false, false, nil)
		return err
	})
	if err != nil {
		return err
	}
	s.registered = true
	s.c.metrics.prefetch.Set(float64(s.prefetch))
	return nil
}

func (s *session) startPump() {
	deliveries, pumped := s.deliveries, make(chan struct{})
	s.pumped = pumped
	s.running.Go(func() { defer close(pumped); s.pump(deliveries) })
}

// cancel ends the registration, where there is one, and returns when everything
// that came before that is in hand. Bodies that there is no room for do not hold
// it up.
func (s *session) cancel() error {
	if !s.registered {
		return nil
	}
	s.registered = false
	if err := s.call("cancelling the consumer", func() error { return s.ch.Cancel(s.tag, false) }); err != nil {
		return err
	}
	<-s.pumped
	return nil
}

// rest reports whether there is nothing to look at until stirred says so: an idle
// consumer should cost nothing.
func (s *session) rest() bool {
	idle := func() bool { return s.registered && s.c.hand.bytes() == 0 && s.book.inHand() == 0 }
	if !idle() {
		return false
	}
	s.resting.Store(true)
	return idle() || !s.resting.CompareAndSwap(true, false)
}

func (s *session) stir() {
	if s.resting.Load() && s.resting.CompareAndSwap(true, false) {
		s.stirred <- struct{}{}
	}
}

// adapt looks at how it goes and changes the prefetch where the flow says so.
func (s *session) adapt() {
	var err error
	if s.registered {
		l := look{prefetch: s.prefetch, held: s.intake.isHeld()}
		l.open, l.settled, l.busy = s.book.load()
		want, strained := s.flow.after(l, time.Now())
		if want == 0 {
			return
		}
		if !strained && !s.fill() {
			s.flow.growth = time.Now().Add(fillAgain)
			return
		}
		if err = s.suspend(want, strained); err == nil {
			err = s.resume()
		}
	} else {
		err = s.resume()
	}
	if err != nil {
		s.lose(err)
	}
}

// suspend ends the registration on the way to a prefetch of want at most.
func (s *session) suspend(want int, strained bool) error {
	if strained {
		s.c.log.Warn("the messages in hand have all the room that there is for them, so reading from the broker was held back; the prefetch is lowered",
			"in_hand", s.book.inHand(), "in_hand_bytes", s.c.hand.bytes(), "max_in_hand_bytes", s.flow.limit, "mean_body", s.c.flow.sizes.mean.Load(),
			"prefetch", s.prefetch, "hint", "raise max_in_hand, or the memory limit that it is a quarter of, or lower prefetch")
	}
	s.changing.Store(true)
	s.book.hold()
	defer s.book.thaw()
	s.intake.setStripping(true)
	if err := s.cancel(); err != nil {
		return err
	}
	s.intake.setStripping(false)
	s.changing.Store(false)
	s.c.metrics.prefetch.Set(0)
	s.want, s.refused, s.since = want, s.intake.takeRefused(), time.Now()
	return nil
}

// fill waits a moment for the prefetch to be used up, and keeps it so. What is on
// its way from a quorum queue at the time of a cancel goes back into the queue, and
// counts as delivered; then nothing is. It reports false where the queue has
// nothing more, and another prefetch would change nothing.
func (s *session) fill() bool {
	for range fillTries {
		if s.book.freeze() {
			return true
		}
		time.Sleep(fillPause)
	}
	s.book.thaw()
	return false
}

// resume registers again once there is room.
func (s *session) resume() error {
	want := min(s.want, s.flow.fits(s.flow.limit))
	n := s.flow.room(want, s.book.inHand(), s.c.hand.bytes(), s.refused, time.Since(s.since))
	if n == 0 {
		return nil
	}
	s.c.log.Debug("prefetch changes", "from", s.prefetch, "to", n)
	s.prefetch = n
	s.book.setPrefetch(n)
	if err := s.register(s.call); err != nil {
		return err
	}
	s.startPump()
	return nil
}
