package verify

import (
	"context"
	"fmt"
	"time"
)

// settings of a run.
type settings struct {
	copies       int           // at once
	rounds       int           // of every case that depends on timing
	attempts     int           // until a 2xx
	shortTimeout time.Duration // 0: half of what the handler takes
	lag          time.Duration // by which the view may be late
	wait         time.Duration // for an effect to show up
	quiet        time.Duration // for effects too many to show up
}

// runner runs the cases, one after the other.
type runner struct {
	settings
	target  *target
	mint    *mint
	scale   *scale
	service *service // nil: cannot be restarted

	latency time.Duration // of the first message
	done    message       // a message that was processed
}

// run runs all cases. The error is about the set-up (the view cannot be read,
// nobody listens); what the handler does wrong is in the cases.
func (r *runner) run(ctx context.Context, report func(*Case)) error {
	once, err := r.once(ctx)
	if err != nil {
		return err
	}
	var failed bool
	for _, c := range once {
		report(c)
		failed = failed || c.Result == Fail
	}
	for _, step := range []struct {
		name string
		run  func(context.Context, *Case) error
		want float64
	}{
		{nameAgain, r.again, 1},
		{nameAtOnce, r.atOnce, 1},
		{nameCrowd, r.crowd, float64(r.copies)},
		{nameCut, r.cut, 1},
		{nameTimeout, r.timeout, 1},
		{nameTwoKeys, r.twoKeys, 2},
		{nameOtherBody, r.otherBody, 1},
		{nameRestart, r.restart, 1},
		{nameKill, r.kill, 1},
	} {
		c := newCase(step.name, step.want)
		switch {
		case failed:
			c.skip("the first message must be processed properly before anything else can be told")
		case r.service == nil && (step.name == nameRestart || step.name == nameKill):
			c.skip("no --restart-cmd, --pid or --pid-file: not shown that the key survives a crash of the service")
		default:
			if err := step.run(ctx, c); err != nil {
				return fmt.Errorf("%s: %w", step.name, err)
			}
		}
		report(c)
	}
	return nil
}

// persist sends m as inboxd does, again after every answer that is neither 2xx
// nor a refusal, and counts the answers. It returns the last one.
func (r *runner) persist(ctx context.Context, c *Case, m message, attempt int) (answer, error) {
	backoff := 50 * time.Millisecond
	for tries := 0; ; tries++ {
		a := c.add(r.target.send(ctx, m, attempt+tries))
		if a.ok() || a.refused() || tries+1 >= r.attempts {
			return a, ctx.Err()
		}
		if err := pause(ctx, backoff); err != nil {
			return a, err
		}
		backoff = min(2*backoff, 2*time.Second)
	}
}

// finish sends m, which was sent before, until it is done, checks that the effect is there when the 2xx
// is, and that it is one in the end.
func (r *runner) finish(ctx context.Context, c *Case, w *watch, m message, many, none fault, story string) error {
	a, err := r.persist(ctx, c, m, 2)
	if err != nil {
		return err
	}
	early := newCase("", 1)
	switch {
	case a.refused():
		c.fail(faultDuplicateAnswer, "%s, the message was answered %s: inboxd would park it", story, a)
	case !a.ok():
		c.fail(faultNeverDone, "%s, the message was not answered 2xx in %d requests; last answer: %s", story, r.attempts, explain(a))
	default:
		if err := r.checkEarly(ctx, early, w, a); err != nil {
			return err
		}
	}
	if err := r.judge(ctx, c, w, many, none, story); err != nil {
		return err
	}
	c.adopt(early)
	return nil
}

// checkEarly looks whether the effect is there at the moment of a 2xx.
func (r *runner) checkEarly(ctx context.Context, c *Case, w *watch, a answer) error {
	if r.lag > 0 {
		return nil
	}
	n, err := w.effects(ctx)
	if err != nil || n != 0 {
		return err
	}
	if a.status == 202 {
		c.Note = "202 is answered before the effect is there: safe only in shared mode with evidence: require, which waits for the row"
		return nil
	}
	c.fail(faultEarlyAnswer, "a request was answered %s while the effect was not there yet: inboxd would ack the message, and a crash at that moment would lose it", a)
	return nil
}

// judge counts the effects in the end; want is one.
func (r *runner) judge(ctx context.Context, c *Case, w *watch, many, none fault, story string) error {
	n, err := w.settle(ctx, 1, max(r.wait, r.lag), r.quietTime())
	if err != nil {
		return err
	}
	if c.Effects == "" || n != 1 {
		c.Effects = effectString(n)
	}
	switch {
	case n == other:
		c.fail(many, "%s, the view shows neither what it showed before nor what one message leaves, but %q", story, w.odd)
	case n == 0:
		c.fail(none, "%s, there was no effect at all, although the message was answered: it is lost", story)
	case n != 1:
		c.fail(many, "%s, there were %s effects instead of one", story, effectString(n))
	}
	return nil
}

// quietTime is long enough for a request that is still at work to end.
func (r *runner) quietTime() time.Duration { return max(r.quiet, 2*r.latency) + r.lag }

func explain(a answer) string {
	switch {
	case a.status == 0 && a.err != nil:
		return "none (" + a.err.Error() + ")"
	case a.body != "":
		return fmt.Sprintf("%s %q", a, a.body)
	}
	return a.String()
}
