package consumer

import (
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

func TestPausesGrowWithFullJitterToTheCapOfTheirKind(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		k           kind
		least, most time.Duration
	}{
		{kindNetwork, 0, 10 * time.Second},
		{kindBroker, 0, 10 * time.Second},
		{kindRefused, 0, refusedCap},
		{kindTopology, 0, topologyCap},
		{kindCancelled, 0, topologyCap},
		{kindAccess, accessPause, accessPause + 10*time.Second},
		{kindSetup, accessPause, accessPause + 10*time.Second},
	} {
		first, low, high := time.Duration(0), time.Hour, time.Duration(0)
		for range 500 {
			b := backoff{min: 100 * time.Millisecond, max: 10 * time.Second}
			first = max(first, b.next(tc.k))
			for range 60 {
				b.next(tc.k)
			}
			d := b.next(tc.k)
			low, high = min(low, d), max(high, d)
		}
		if want := tc.least + 100*time.Millisecond; first > want {
			t.Errorf("%s: first pause = %s, want at most %s", tc.k, first, want)
		}
		if low < tc.least || high > tc.most {
			t.Errorf("%s: pauses = %s to %s, want within %s to %s", tc.k, low, high, tc.least, tc.most)
		}
		// Full jitter: the range is used.
		if spread := tc.most - tc.least; low > tc.least+spread/5 || high < tc.most-spread/5 {
			t.Errorf("%s: pauses = %s to %s, want them spread over %s to %s", tc.k, low, high, tc.least, tc.most)
		}
	}
}

func TestKindOfFailure(t *testing.T) {
	t.Parallel()
	server := func(code int) error { return &amqp.Error{Code: code, Server: true} }
	for _, tc := range []struct {
		err  error
		want kind
	}{
		{amqp.ErrCredentials, kindAccess},
		{amqp.ErrVhost, kindAccess},
		{server(amqp.AccessRefused), kindAccess},
		{server(amqp.NotAllowed), kindAccess},
		{server(amqp.NotFound), kindTopology},
		{server(amqp.ResourceLocked), kindTopology},
		{server(amqp.PreconditionFailed), kindTopology},
		{errCancelled, kindCancelled},
		{server(amqp.InternalError), kindBroker},
		{server(amqp.ConnectionForced), kindBroker},
		{amqp.ErrClosed, kindNetwork},
		{errNoAnswer, kindNoAnswer},
		{syscall.ECONNREFUSED, kindRefused},
		{syscall.ECONNRESET, kindNetwork},
		{ErrStream, kindSetup},
		{errSetup, kindSetup},
		{errors.New("anything"), kindNetwork},
	} {
		if got := kindOf(fmt.Errorf("doing it: %w", tc.err)); got != tc.want {
			t.Errorf("kindOf(%v) = %s, want %s", tc.err, got, tc.want)
		}
	}
}

func TestLongOutageIsLoggedOnceAMinute(t *testing.T) {
	t.Parallel()
	var o outage
	now := time.Unix(0, 0)
	lines := 0
	for range 10 * 60 { // ten minutes, a failure a second
		if log, _ := o.report(kindRefused, now); log {
			lines++
		}
		now = now.Add(time.Second)
	}
	if lines != 10 {
		t.Errorf("lines = %d, want 10", lines)
	}
	for range 10 * 60 { // two nodes in turn
		for _, k := range []kind{kindRefused, kindNoAnswer} {
			if log, _ := o.report(k, now); log {
				lines++
			}
		}
		now = now.Add(time.Second)
	}
	if lines != 30 {
		t.Errorf("two kinds in turn: lines = %d, want 20 more than 10", lines)
	}
	if log, skipped := o.report(kindAccess, now); !log || skipped != 118 {
		t.Errorf("another kind: log = %t, skipped = %d, want true, 118", log, skipped)
	}
}

func TestStallEndsASessionOnlyAfterPatience(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	session := now
	var p patience
	look := func(ready, inHand int) bool {
		now = now.Add(30 * time.Second)
		return p.stalled(ready, inHand, session, now)
	}
	for range 10 {
		if look(0, 0) || look(5, 1) {
			t.Fatal("stalled, want not: nothing is ready or something is in hand")
		}
	}
	for i := range 2 {
		if look(5, 0) {
			t.Fatalf("look %d: stalled, want patience for %s", i, minPatience)
		}
	}
	if !look(5, 0) {
		t.Error("not stalled, want stalled after a minute")
	}
	if look(5, 0); p.limit != 2*minPatience {
		t.Errorf("patience = %s, want %s after a vain reconnect", p.limit, 2*minPatience)
	}
}
