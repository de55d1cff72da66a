package consumer

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/inboxd/inboxd/internal/inbox"
)

// TestACarefulSessionHasOneMessageInHand: whatever ends it counts against no
// other message. It becomes a full one without a message going back.
func TestACarefulSessionHasOneMessageInHand(t *testing.T) {
	t.Parallel()
	var careful atomic.Bool
	careful.Store(true)
	var singles, redelivered atomic.Int64
	allow := make(chan struct{})
	r := startRig(t, rigOptions{
		args: quorum,
		tune: func(o *Options) { o.Careful = careful.Load },
		handler: func(_ context.Context, d *inbox.Delivery) inbox.Result {
			if d.Single {
				singles.Add(1)
			}
			if d.Redelivered {
				redelivered.Add(1)
			}
			<-allow
			return inbox.Result{Outcome: inbox.Processed}
		},
	})
	r.publish(0, 100)
	for n := range 5 {
		eventually(t, 10*time.Second, "the next message is in hand", func() bool { return singles.Load() == int64(n+1) })
		if got := r.c.Status().Running; got != 1 {
			t.Errorf("in hand: got %d, want 1", got)
		}
		allow <- struct{}{}
	}
	eventually(t, 10*time.Second, "the next message is in hand", func() bool { return singles.Load() == 6 })
	careful.Store(false)
	// It finishes the one that it has, and nothing else is handed over meanwhile.
	eventually(t, 10*time.Second, "the session ends", func() bool { return !r.c.Status().Consuming })
	allow <- struct{}{}
	eventually(t, 10*time.Second, "a prefetch of handlers runs", func() bool { return r.c.Status().Running == 16 })
	close(allow)
	eventually(t, 20*time.Second, "every message was handled", func() bool { d, _ := r.calls(); return d == 100 })
	if _, err := r.end(); err != nil {
		t.Errorf("Run = %v, want nil", err)
	}
	if _, total := r.calls(); total != 100 || redelivered.Load() != 0 {
		t.Errorf("got %d handler calls, %d of them redeliveries, want 100 and none", total, redelivered.Load())
	}
	if got := r.c.Status().Sessions; got != 2 {
		t.Errorf("sessions: got %d, want 2", got)
	}
}

// TestTheRenewalOfASessionDoesNotWaitForAMessageThatWaits: what has not started
// goes back.
func TestTheRenewalOfASessionDoesNotWaitForAMessageThatWaits(t *testing.T) {
	t.Parallel()
	var careful atomic.Bool
	careful.Store(true)
	var first atomic.Bool
	r := startRig(t, rigOptions{
		args: quorum,
		tune: func(o *Options) { o.Careful = careful.Load },
		handler: func(ctx context.Context, d *inbox.Delivery) inbox.Result {
			if first.CompareAndSwap(false, true) {
				<-ctx.Done() // it waits for its turn, or for the handler
				return inbox.Result{Outcome: inbox.Returned, Err: context.Cause(ctx)}
			}
			return inbox.Result{Outcome: inbox.Processed}
		},
	})
	r.publish(0, 10)
	eventually(t, 10*time.Second, "a message is in hand", first.Load)
	careful.Store(false)
	eventually(t, 10*time.Second, "every message was handled", func() bool { d, total := r.calls(); return d == 10 && total == 11 })
	if left := r.left(); left != 0 {
		t.Errorf("left in the queue = %d, want 0", left)
	}
}
