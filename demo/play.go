package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/inboxd/inboxd/internal/testenv"
)

// glance is how often the demo looks at handler and daemon.
const glance = 50 * time.Millisecond

// patience is how long nothing may move.
const patience = 20 * time.Second

// killInTheMiddle lets the daemon work, kills it, starts it again, and counts.
func (d *demo) killInTheMiddle(ctx context.Context) (t tally, err error) {
	t.orders, t.published = orderCount, orderCount+duplicateCount
	if err := d.daemon.start(); err != nil {
		return t, err
	}
	const middle = orderCount * 45 / 100
	first, err := d.watch(ctx, counters{}, func(effects int, _ counters) bool { return effects >= middle })
	if err != nil {
		return t, err
	}
	d.daemon.kill()
	t.firstLife = first
	before, err := d.handler.stats(ctx)
	if err != nil {
		return t, err
	}
	d.out.line("  SIGKILL at %s effects: no warning, no clean-up. What it had in flight goes back to the queue.", thousands(before.Effects))
	ready, err := d.handedBack(ctx)
	if err != nil {
		return t, err
	}
	// Each message is acknowledged once, so what is not in the queue any more
	// is what the killed daemon had settled.
	t.settledFirst = t.published - ready
	d.out.line("  %s of %s messages are settled, the other %s are in the queue again. Starting inboxd once more.",
		thousands(t.settledFirst), thousands(t.published), thousands(ready))

	if err := d.daemon.start(); err != nil {
		return t, err
	}
	t.secondLife, err = d.watch(ctx, first, func(effects int, c counters) bool {
		return effects >= orderCount && c.settled() >= ready
	})
	if err != nil {
		return t, err
	}
	d.out.line("  Stopping inboxd by SIGTERM, as a deployment would.")
	if err := d.daemon.stop(); err != nil {
		return t, err
	}
	after, err := d.handler.stats(ctx)
	if err != nil {
		return t, err
	}
	t.requests, t.effects = after.Requests, after.Effects
	if t.left, err = d.handedBack(ctx); err != nil {
		return t, err
	}
	return t, nil
}

// handedBack waits until the broker has noticed that the daemon is gone, and
// returns how many messages are in the queue.
func (d *demo) handedBack(ctx context.Context) (ready int, err error) {
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); sleep(ctx, glance) {
		ready, consumers, err := testenv.QueueState(d.broker.url, d.queue)
		if err := errors.Join(err, ctx.Err()); err != nil {
			return 0, err
		}
		if consumers == 0 {
			return ready, nil
		}
	}
	return 0, fmt.Errorf("the broker still knows a consumer %v after the daemon's end", patience)
}

// watch shows the progress until enough says so, and returns the daemon's own
// counters of that moment. earlier is what a former life had counted.
func (d *demo) watch(ctx context.Context, earlier counters, enough func(effects int, c counters) bool) (counters, error) {
	var c counters
	effects, moved := -1, time.Now()
	for {
		if err := errors.Join(ctx.Err(), d.daemon.died()); err != nil {
			return c, err
		}
		s, err := d.handler.stats(ctx)
		if err != nil {
			return c, err
		}
		// The daemon's metrics are not there yet while it starts.
		if now, err := d.daemon.scrape(ctx); err == nil {
			if now != c {
				moved = time.Now()
			}
			c = now
		}
		if s.Effects != effects {
			effects, moved = s.Effects, time.Now()
		}
		progress := fmt.Sprintf("  %s  %5s of %s effects, %s requests, %d duplicates suppressed",
			bar(effects, orderCount, 24), thousands(effects), thousands(orderCount), thousands(s.Requests), earlier.duplicate+c.duplicate)
		if enough(effects, c) {
			d.out.showLast(progress)
			return c, nil
		}
		d.out.show(progress)
		if time.Since(moved) > patience {
			return c, fmt.Errorf("nothing moved for %v at %d effects; inboxd said last:\n%s", patience, effects, lastWords(d.daemon.process.log))
		}
		sleep(ctx, glance)
	}
}
