package verify

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"
)

// The names of the cases.
const (
	nameOnce      = "once"
	nameRetry     = "retried after a failure"
	nameAgain     = "again"
	nameAtOnce    = "at once"
	nameCrowd     = "others at once"
	nameCut       = "connection cut, then again"
	nameTimeout   = "time-out, then again"
	nameTwoKeys   = "two keys"
	nameOtherBody = "same key, other body"
	nameRestart   = "again after a restart"
	nameKill      = "killed at work, then again"
)

// once sends the first message, which sets the scale, and where the answer is
// a failure sends it again until it is done: two cases.
func (r *runner) once(ctx context.Context) ([]*Case, error) {
	once, retry := newCase(nameOnce, 1), newCase(nameRetry, 1)
	m := r.mint.next()
	w, err := r.scale.watch(ctx, m)
	if err != nil {
		return nil, err
	}
	a := once.add(r.target.send(ctx, m, 1))
	r.latency, r.done = a.took, m
	switch {
	case a.ok():
		retry.skip("no request failed")
		return []*Case{once, retry}, r.firstEffect(ctx, once, w, a)
	case a.refused() || a.status/100 == 4 && a.status != 408 && a.status != 409 && a.status != 425 && a.status != 429 || a.status/100 == 3:
		once.fail(faultUnreachable, "the first request was answered %s", explain(a))
		retry.skip("the first request was refused")
		return []*Case{once, retry}, nil
	}

	// A failure; was there an effect all the same?
	early, err := w.settle(ctx, 1, r.quietTime(), r.quietTime())
	if err != nil {
		return nil, err
	}
	once.Effects, once.Want = effectString(early), "0 or 1"
	once.Note = "answered " + explain(a)
	if early != 0 {
		once.Note += ", with the effect committed"
		if err := w.calibrate(ctx); err != nil {
			return nil, err
		}
	}
	b, err := r.persist(ctx, retry, m, 2)
	if err != nil {
		return nil, err
	}
	if !b.ok() {
		retry.Effects = effectString(early)
		retry.fail(faultNeverDone, "the message was not answered 2xx in %d requests; last answer: %s", 1+retry.Requests, explain(b))
		return []*Case{once, retry}, nil
	}
	if early == 0 {
		return []*Case{once, retry}, r.firstEffect(ctx, retry, w, b)
	}
	err = r.judge(ctx, retry, w, faultUnsafeRetry, faultHalf,
		fmt.Sprintf("after the first request was answered %s with its effect committed and the message was sent again", a))
	return []*Case{once, retry}, err
}

// firstEffect waits for the first effect there is and takes it as the scale.
func (r *runner) firstEffect(ctx context.Context, c *Case, w *watch, a answer) error {
	early := newCase("", 1)
	if err := r.checkEarly(ctx, early, w, a); err != nil {
		return err
	}
	n, err := w.settle(ctx, 1, max(r.wait, r.lag), r.quietTime())
	if err != nil {
		return err
	}
	c.Effects = effectString(n)
	if n == 0 {
		c.fail(faultNoEffect, "the message was answered %s, but the view shows no effect", a)
		return nil
	}
	c.adopt(early)
	if err := w.calibrate(ctx); err != nil {
		return err
	}
	if u := r.scale.unit; u != 0 && u != 1 {
		c.Note = join(c.Note, fmt.Sprintf("one message changes the view by %s", effectString(u)))
	}
	return nil
}

// again sends a finished message twice more.
func (r *runner) again(ctx context.Context, c *Case) error {
	m := r.mint.next()
	w, err := r.scale.watch(ctx, m)
	if err != nil {
		return err
	}
	if a, err := r.persist(ctx, c, m, 1); err != nil || !a.ok() {
		c.fail(faultNeverDone, "the message was not answered 2xx in %d requests; last answer: %s", c.Requests, explain(a))
		return err
	}
	for i := range 2 {
		a := c.add(r.target.send(ctx, m, i+2))
		if !a.ok() {
			c.fail(faultDuplicateAnswer, "a message that was processed already was answered %s", explain(a))
		}
	}
	r.done = m
	return r.judge(ctx, c, w, faultKeyIgnored, faultNoEffect, "after a message was sent three times, one after the other")
}

// atOnce sends copies of one message at the same instant.
func (r *runner) atOnce(ctx context.Context, c *Case) error {
	for range r.rounds {
		m := r.mint.next()
		w, err := r.scale.watch(ctx, m)
		if err != nil {
			return err
		}
		answers, err := r.salvo(ctx, slices.Repeat([]message{m}, r.copies))
		if err != nil {
			return err
		}
		looked := false
		for range r.copies {
			a := c.add(<-answers)
			if a.refused() {
				c.fail(faultDuplicateAnswer, "of %d copies at once one was answered %s: inboxd would park it", r.copies, explain(a))
			}
			if a.ok() && !looked {
				looked = true
				if err := r.checkEarly(ctx, c, w, a); err != nil {
					return err
				}
			}
		}
		story := fmt.Sprintf("after %d copies of a message were sent at once", r.copies)
		if err := r.finish(ctx, c, w, m, faultRace, faultHalf, story); err != nil || c.Result == Fail {
			return err
		}
	}
	return nil
}

// crowd sends different messages at the same instant: what requests share must
// not mix them up.
func (r *runner) crowd(ctx context.Context, c *Case) error {
	msgs := make([]message, r.copies)
	for i := range msgs {
		msgs[i] = r.mint.next()
	}
	watches := make([]*watch, len(msgs))
	for i, m := range msgs {
		var err error
		if watches[i], err = r.scale.watch(ctx, m); err != nil {
			return err
		}
	}
	answers, err := r.salvo(ctx, msgs)
	if err != nil {
		return err
	}
	for range msgs {
		c.add(<-answers)
	}
	for _, m := range msgs {
		if a, err := r.persist(ctx, c, m, 2); err != nil {
			return err
		} else if !a.ok() {
			c.fail(faultNeverDone, "of %d different messages at once one was not answered 2xx; last answer: %s", len(msgs), explain(a))
		}
	}
	want := float64(len(msgs))
	if !keyed(r.scale.view) {
		return r.judgeSum(ctx, c, watches[0], want, faultMixed, "%d different messages at once had %s effects together", len(msgs))
	}
	var sum float64
	for i, w := range watches {
		n, err := w.settle(ctx, 1, max(r.wait, r.lag), 0)
		if err != nil {
			return err
		}
		sum += max(n, 0)
		if n != 1 {
			c.fail(faultMixed, "of %d different messages at once number %d had %s effects instead of one", len(msgs), i+1, effectString(n))
		}
	}
	c.Effects = effectString(sum)
	return nil
}

// salvo lets all messages go together, each on its own connection; their
// answers come through the channel.
func (r *runner) salvo(ctx context.Context, msgs []message) (<-chan answer, error) {
	shots := make([]*shot, 0, len(msgs))
	for _, m := range msgs {
		s, err := r.target.aim(ctx, m, 1)
		if err != nil {
			for _, s := range shots {
				s.cut()
			}
			return nil, fmt.Errorf("connection %d of %d at once: %w (the daemon opens as many as its concurrency: "+
				"let the service take several connections at a time, or lower --copies to what it takes)", len(shots)+1, len(msgs), err)
		}
		shots = append(shots, s)
	}
	answers := make(chan answer, len(msgs))
	start := make(chan struct{})
	for _, s := range shots {
		go func() {
			<-start
			answers <- s.shoot(r.target.timeout)
		}()
	}
	close(start)
	return answers, nil
}

// cut closes the connection at several moments of the handler's work, lets it
// end, and sends the message again.
func (r *runner) cut(ctx context.Context, c *Case) error {
	for _, after := range []time.Duration{0, r.latency / 2, r.latency} {
		if err := r.abandoned(ctx, c, after, func() error { return pause(ctx, r.quietTime()) },
			"after the connection was cut before the answer and the message was sent again"); err != nil || c.Result == Fail {
			return err
		}
	}
	return nil
}

// timeout gives up on a request and sends the message again while the handler
// may still be at work on the first.
func (r *runner) timeout(ctx context.Context, c *Case) error {
	after := r.shortTimeout
	if after == 0 {
		after = max(r.latency/2, time.Millisecond)
	}
	for range r.rounds {
		if err := r.abandoned(ctx, c, after, func() error { return nil },
			fmt.Sprintf("after the client gave up in %v and sent the message again", after.Round(100*time.Microsecond))); err != nil || c.Result == Fail {
			return err
		}
	}
	return nil
}

func (r *runner) abandoned(ctx context.Context, c *Case, after time.Duration, between func() error, story string) error {
	m := r.mint.next()
	w, err := r.scale.watch(ctx, m)
	if err != nil {
		return err
	}
	s, err := r.target.aim(ctx, m, 1)
	if err != nil {
		return err
	}
	defer s.cut()
	if err := s.fire(); err != nil {
		return err
	}
	if err := pause(ctx, after); err != nil {
		return err
	}
	s.cut()
	c.cutShort(1)
	if err := between(); err != nil {
		return err
	}
	return r.finish(ctx, c, w, m, faultRace, faultHalf, story)
}

// twoKeys sends two messages that must not be taken for one.
func (r *runner) twoKeys(ctx context.Context, c *Case) error {
	a, b := r.mint.next(), r.mint.next()
	w, err := r.scale.watch(ctx, a, b)
	if err != nil {
		return err
	}
	for _, m := range []message{a, b} {
		last, err := r.persist(ctx, c, m, 1)
		if err != nil {
			return err
		}
		if !last.ok() {
			c.fail(faultWrongKey, "of two messages with two keys one was not answered 2xx; last answer: %s", explain(last))
		}
	}
	if err := r.judgeSum(ctx, c, w, 2, faultWrongKey, "%d messages with two keys had %s effects together", 2); err != nil {
		return err
	}
	if !r.mint.distinct() {
		c.Note = "the sample has neither {{id}} nor {{n}}: both messages had one body"
	}
	return nil
}

func (r *runner) judgeSum(ctx context.Context, c *Case, w *watch, want float64, f fault, why string, messages int) error {
	n, err := w.settle(ctx, want, max(r.wait, r.lag), r.quietTime())
	if err != nil {
		return err
	}
	c.Effects = effectString(n)
	if n != want {
		c.fail(f, why, messages, effectString(n))
	}
	return nil
}

// otherBody sends a key again with another body.
func (r *runner) otherBody(ctx context.Context, c *Case) error {
	m := r.mint.next()
	o := r.mint.otherBody(m)
	w, err := r.scale.watch(ctx, m, o)
	if err != nil {
		return err
	}
	if a, err := r.persist(ctx, c, m, 1); err != nil || !a.ok() {
		c.fail(faultNeverDone, "the message was not answered 2xx; last answer: %s", explain(a))
		return err
	}
	a := c.add(r.target.send(ctx, o, 1))
	if err := r.judge(ctx, c, w, faultOtherBody, faultHalf, "after a key was sent again with another body"); err != nil {
		return err
	}
	if c.Result == Pass && a.status != 422 {
		c.Note = fmt.Sprintf("the second body was answered %s and had no effect; 422 would park it for somebody to see", a)
	}
	return nil
}

func join(a, b string) string {
	if a == "" || b == "" || a == b {
		return cmp.Or(a, b)
	}
	return a + "; " + b
}
