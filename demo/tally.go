package main

import (
	"errors"
	"fmt"
	"io"
)

// tally is what came of it. The broker, the handler and the daemon each tell
// their part, so that a wrong count of one shows.
type tally struct {
	orders    int // different ones
	published int // by the demo, confirmed by the broker
	requests  int // by the handler's count, over both lives of the daemon
	effects   int // rows in the handler's table
	left      int // messages in the queue at the end

	// settledFirst is how many messages the first daemon had acknowledged, by
	// what was left in the queue.
	settledFirst int
	// The daemons' own counters. Those of the first died with it: they are from
	// the last look before the kill.
	firstLife, secondLife counters
}

func (t tally) lost() int { return t.orders - t.effects }

func (t tally) suppressed() int { return t.firstLife.duplicate + t.secondLife.duplicate }

// problems says why the demo has not shown what it promises.
func (t tally) problems() []error {
	var errs []error
	if t.effects != t.orders {
		errs = append(errs, fmt.Errorf("%d effects for %d orders", t.effects, t.orders))
	}
	if t.left != 0 {
		errs = append(errs, fmt.Errorf("%d messages are left in the queue", t.left))
	}
	if parked := t.firstLife.parked + t.secondLife.parked; parked != 0 {
		errs = append(errs, fmt.Errorf("%d messages are parked", parked))
	}
	if t.requests < t.effects {
		errs = append(errs, errors.New("the handler counts fewer requests than effects"))
	}
	return errs
}

// print writes the table, each figure with where it comes from.
func (t tally) print(w io.Writer) {
	row := func(name string, n int, format string, a ...any) {
		fmt.Fprintf(w, "  %-22s %6s   %s\n", name, thousands(n), fmt.Sprintf(format, a...))
	}
	settled := t.published - t.left
	row("published", t.published, "%s orders, %d of them twice", thousands(t.orders), t.published-t.orders)
	row("deliveries", settled, "acknowledged: %s before the kill, %s after it; up to %d more were",
		thousands(t.settledFirst), thousands(settled-t.settledFirst), prefetch)
	fmt.Fprintf(w, "  %-22s %6s   unsettled when the daemon died, and were delivered again\n", "", "")
	row("requests", t.requests, "by the handler's count%s", repeatedText(t.requests-t.effects))
	row("suppressed duplicates", t.suppressed(), "known to the inbox, so no request: %d before the kill, %d after it",
		t.firstLife.duplicate, t.secondLife.duplicate)
	row("effects", t.effects, "rows that the handler committed")
	row("lost", t.lost(), "orders without an effect")
}

// repeatedText explains the requests beyond one an order: the crash window that
// the handler's own key closes.
func repeatedText(n int) string {
	switch {
	case n <= 0:
		return ""
	case n == 1:
		return "; 1 had no record yet at the kill and was sent again"
	default:
		return fmt.Sprintf("; %d had no record yet at the kill and were sent again", n)
	}
}
