package consumer

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/inboxd/inboxd/internal/inbox"
	"github.com/inboxd/inboxd/internal/testenv"
)

// TestThePrefetchFollowsTheHandler: what a handler does in 50 ms, within the
// bounds, and growth only where the queue has shown that it has more.
func TestThePrefetchFollowsTheHandler(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for name, tc := range map[string]struct {
		look look
		want int
	}{
		"slow":                     {look{prefetch: 32, open: 32, busy: true, settled: 20}, 0},
		"quick":                    {look{prefetch: 32, open: 20, busy: true, settled: 200}, 100},
		"very quick":               {look{prefetch: 32, open: 20, busy: true, settled: 5000}, 256},
		"quick, but little to do":  {look{prefetch: 32, open: 2, settled: 200}, 0},
		"a bit quicker than it is": {look{prefetch: 80, open: 80, busy: true, settled: 200}, 0},
		"less than the least":      {look{prefetch: 30, open: 30, busy: true}, 32},
	} {
		f := Options{Prefetch: 32, MaxPrefetch: 256}.newFlow()
		f.sizes.n.Store(1000)
		if got, strained := f.after(tc.look, now); got != tc.want || strained {
			t.Errorf("%s: got %d, strained %t, want %d", name, got, strained, tc.want)
		}
	}
}

func TestALargePrefetchGoesOnlyWhenTheHandlerStaysSlow(t *testing.T) {
	t.Parallel()
	f, now := Options{Prefetch: 32, MaxPrefetch: 256}.newFlow(), time.Now()
	slow, quick := look{prefetch: 256, open: 256, busy: true, settled: 10}, look{prefetch: 256, open: 256, busy: true, settled: 500}
	for i := range 3 * slowLooks {
		l := slow
		if i%10 == 0 {
			l = quick
		}
		if got, _ := f.after(l, now); got != 0 {
			t.Fatalf("look %d at a handler that is slow now and then: got %d, want 0", i, got)
		}
	}
	f.after(quick, now)
	for i := range slowLooks {
		want := 0
		if i == slowLooks-1 {
			want = 32
		}
		if got, _ := f.after(slow, now); got != want {
			t.Fatalf("look %d at a slow handler: got %d, want %d", i, got, want)
		}
	}
	quick.prefetch = 32
	f.sizes.n.Store(1000)
	if got, _ := f.after(quick, now.Add(minCalm/2)); got != 0 {
		t.Errorf("soon after: got %d, want 0", got)
	}
	if got, _ := f.after(quick, now.Add(minCalm)); got != 250 {
		t.Errorf("later: got %d, want 250", got)
	}
}

func TestThePrefetchPromisesNoMoreThanThereIsRoomFor(t *testing.T) {
	t.Parallel()
	now := time.Now()
	f := Options{Prefetch: 1000, MaxBytes: 64 << 20, BodySize: 16 << 20}.newFlow()
	if got := f.first(); got != 4 {
		t.Errorf("before the first body: got %d, want 4", got)
	}
	for range 4 {
		f.sizes.add(1 << 10)
	}
	if got, _ := f.after(look{prefetch: 4, open: 4, busy: true}, now); got != 1000 {
		t.Errorf("small bodies: got %d, want 1000", got)
	}
	for range 100 {
		f.sizes.add(16 << 20)
	}
	held, got := 0, 0
	for strained := false; !strained && held < 1000; held++ {
		got, strained = f.after(look{prefetch: 1000, open: 4, busy: true, held: true}, now)
	}
	if limit := int(heldPatience / lookEvery); got != 4 || held != limit {
		t.Errorf("large bodies: got %d after %d looks, want 4 after %d", got, held, limit)
	}
	for used, want := range map[int64]int{64 << 20: 0, 40 << 20: 0, 32 << 20: 2, 0: 4} {
		if got := f.room(4, 1, used, 16<<20, 0); got != want {
			t.Errorf("room beside %d MiB: got %d, want %d", used>>20, got, want)
		}
	}
	if got := f.room(4, 1, 40<<20, 16<<20, time.Second); got != 1 {
		t.Errorf("room beside 40 MiB that stay: got %d, want 1", got)
	}
	if got := f.room(4, 1, 10<<20, 60<<20, time.Hour); got != 0 {
		t.Errorf("no room for the body that was refused: got %d, want 0", got)
	}
}

// TestAQuickHandlerEarnsALargePrefetch: on the real broker, with nothing
// delivered twice and every order of tags kept over the changes.
func TestAQuickHandlerEarnsALargePrefetch(t *testing.T) {
	t.Parallel()
	for name, args := range map[string]amqp.Table{"classic": classic, "quorum": quorum} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var again, flaps atomic.Int64
			const n = 20_000
			var r *rig
			started := make(chan struct{})
			r = startRig(t, rigOptions{
				args: args,
				tune: func(o *Options) {
					o.Prefetch, o.MaxPrefetch = 16, 256
					o.MaxBytes, o.BodySize = 64<<20, 16<<20
				},
				handler: func(_ context.Context, d *inbox.Delivery) inbox.Result {
					<-started
					if d.Redelivered || d.DeliveryCount > 0 {
						again.Add(1)
					}
					if !r.c.Status().Consuming {
						flaps.Add(1)
					}
					return inbox.Result{Outcome: inbox.Processed}
				},
			})
			r.publish(0, n)
			close(started)
			eventually(t, 60*time.Second, "every message was handled", func() bool { d, _ := r.calls(); return d == n })
			prefetch := testutil.ToFloat64(r.c.metrics.prefetch)
			if prefetch <= 32 {
				t.Errorf("prefetch at last: got %v, want more than 32", prefetch)
			}
			if _, total := r.calls(); total != n || again.Load() != 0 || flaps.Load() != 0 {
				t.Errorf("got %d calls, %d of them redeliveries, %d outside of a session, want %d, 0, 0", total, again.Load(), flaps.Load(), n)
			}
			if left := r.left(); left != 0 {
				t.Errorf("left in the queue: got %d, want 0", left)
			}
			if got := r.c.Status().Sessions; got != 1 {
				t.Errorf("sessions: got %d, want 1", got)
			}
			t.Logf("prefetch at last: %v", prefetch)
		})
	}
}

func TestASlowHandlerKeepsTheSmallPrefetch(t *testing.T) {
	t.Parallel()
	slots := make(chan struct{}, 16)
	r := startRig(t, rigOptions{
		args: quorum, tune: func(o *Options) { o.Prefetch, o.MaxPrefetch = 32, 256 },
		handler: func(context.Context, *inbox.Delivery) inbox.Result {
			slots <- struct{}{}
			time.Sleep(50 * time.Millisecond) // the work
			<-slots
			return inbox.Result{Outcome: inbox.Processed}
		},
	})
	const n = 600
	r.publish(0, n)
	eventually(t, 30*time.Second, "every message was handled", func() bool {
		if got := r.c.Status().Running; got > 32 {
			t.Errorf("in hand: got %d, want at most 32", got)
		}
		d, _ := r.calls()
		return d == n
	})
}

// sized makes every body n bytes long, with its number in front.
func sized(n int) func(int, *amqp.Publishing) {
	return func(i int, p *amqp.Publishing) {
		p.Body = make([]byte, n)
		copy(p.Body, fmt.Sprintf("%08d", i))
	}
}

// largeRig has bodies of 16 MiB and room for four, and a prefetch of 64 that the
// broker really uses: the consumer expects small bodies.
type largeRig struct {
	*rig
	allow    chan struct{} // one for each handler's end
	mu       sync.Mutex
	handled  map[string]int
	counts   map[string]int64
	most     int64 // bytes in hand
	inFlight atomic.Int64
}

const (
	largeBody = 16 << 20
	largeRoom = 4 * largeBody
)

func startLarge(t *testing.T, n int, args amqp.Table, tune func(*Options)) *largeRig {
	t.Helper()
	l := &largeRig{allow: make(chan struct{}), handled: map[string]int{}, counts: map[string]int64{}}
	l.rig = startRig(t, rigOptions{
		args: args,
		tune: func(o *Options) {
			o.Prefetch, o.MaxBytes, o.BodySize = 64, largeRoom, 1<<10
			if tune != nil {
				tune(o)
			}
		},
		handler: func(ctx context.Context, d *inbox.Delivery) inbox.Result {
			l.inFlight.Add(1)
			defer l.inFlight.Add(-1)
			select {
			case <-l.allow:
			case <-ctx.Done():
				return inbox.Result{Outcome: inbox.Returned, Err: ctx.Err()}
			}
			l.mu.Lock()
			defer l.mu.Unlock()
			l.handled[string(d.Body[:8])]++
			l.counts[string(d.Body[:8])] = d.DeliveryCount
			l.most = max(l.most, l.c.hand.bytes())
			if len(d.Body) != largeBody {
				return inbox.Result{Outcome: inbox.Rejected, Err: fmt.Errorf("%d bytes", len(d.Body))}
			}
			return inbox.Result{Outcome: inbox.Processed}
		},
	})
	l.gate.Shut(inbox.HindrancePaused, "until there are messages")
	l.publish(0, n, sized(largeBody))
	l.gate.Open(inbox.HindrancePaused)
	return l
}

func TestLargeBodiesAreHeldBackByTheirBytes(t *testing.T) {
	t.Parallel()
	for name, args := range map[string]amqp.Table{"classic": classic, "quorum": quorum} {
		t.Run(name, func(t *testing.T) {
			const n = 24
			l := startLarge(t, n, args, nil)
			eventually(t, 20*time.Second, "the room is full", func() bool { return l.inFlight.Load() == 4 })
			eventually(t, 20*time.Second, "the registration is suspended", func() bool {
				return testutil.ToFloat64(l.c.metrics.prefetch) == 0
			})
			if s := l.c.Status(); !s.Consuming || s.Sessions != 1 {
				t.Errorf("while it waits for room: consuming %t, sessions %d, want true, 1", s.Consuming, s.Sessions)
			}
			close(l.allow)
			eventually(t, 120*time.Second, "every message was handled", func() bool {
				l.mu.Lock()
				defer l.mu.Unlock()
				return len(l.handled) == n
			})
			eventually(t, 10*time.Second, "nothing is in hand", func() bool { return l.c.hand.bytes() == 0 })
			for id, times := range l.handled {
				if times != 1 || l.counts[id] > 1 {
					t.Errorf("message %s: handled %d times, delivered %d times before, want once and at most 1", id, times, l.counts[id])
				}
			}
			if l.most > largeRoom {
				t.Errorf("bytes in hand: got %d at most, want %d", l.most, largeRoom)
			}
			if got := l.c.Status().Sessions; got != 1 {
				t.Errorf("sessions: got %d, want 1", got)
			}
			if got := testutil.ToFloat64(l.c.metrics.heldBack); got < 1 {
				t.Errorf("held back for %v s, want about 2", got)
			}
			if left := l.left(); left != 0 {
				t.Errorf("left in the queue: got %d, want 0", left)
			}
		})
	}
}

// TestAStopComesThroughWhileReadingIsHeldBack: the answer of the broker waits
// behind bodies that there is no room for.
func TestAStopComesThroughWhileReadingIsHeldBack(t *testing.T) {
	t.Parallel()
	for name, stop := range map[string]func(l *largeRig){
		"stop":  func(l *largeRig) { l.stop() },
		"pause": func(l *largeRig) { l.gate.Shut(inbox.HindrancePaused, "test") },
	} {
		t.Run(name, func(t *testing.T) {
			const n = 12
			l := startLarge(t, n, quorum, nil)
			eventually(t, 20*time.Second, "reading is held back", func() bool {
				return l.inFlight.Load() == 4 && l.c.hand.bytes() == largeRoom
			})
			begun := time.Now()
			stop(l)
			eventually(t, 4*time.Second, "the session ends", func() bool { return !l.c.Status().Connected })
			t.Logf("took %s", time.Since(begun))
			if got := l.c.hand.bytes(); got != 0 {
				t.Errorf("bytes in hand: got %d, want 0", got)
			}
			if err := l.c.Status().LastError; err != "" {
				t.Errorf("the session was lost: %s", err)
			}
			if left := l.left(); left != n {
				t.Errorf("left in the queue: got %d, want %d", left, n)
			}
		})
	}
}

// TestALargePrefetchGoesWhenTheHandlerGetsSlow: with nothing delivered twice.
func TestALargePrefetchGoesWhenTheHandlerGetsSlow(t *testing.T) {
	t.Parallel()
	for name, args := range map[string]amqp.Table{"classic": classic, "quorum": quorum} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var again atomic.Int64
			var slow atomic.Bool
			slots := make(chan struct{}, 16)
			r := startRig(t, rigOptions{
				args: args, tune: func(o *Options) { o.Prefetch, o.MaxPrefetch = 16, 256 },
				handler: func(_ context.Context, d *inbox.Delivery) inbox.Result {
					if d.Redelivered || d.DeliveryCount > 0 {
						again.Add(1)
					}
					if slow.Load() {
						slots <- struct{}{}
						time.Sleep(100 * time.Millisecond) // the work
						<-slots
					}
					return inbox.Result{Outcome: inbox.Processed}
				},
			})
			prefetch := func() int { return int(testutil.ToFloat64(r.c.metrics.prefetch)) }
			feeding, fed := make(chan struct{}), make(chan struct{})
			n := 0
			go func() {
				defer close(fed)
				for ; n < 60_000; n += 1000 {
					select {
					case <-feeding:
						return
					default:
						r.publish(n, 1000)
					}
				}
			}()
			eventually(t, 20*time.Second, "a large prefetch", func() bool { return prefetch() >= 64 })
			slow.Store(true)
			eventually(t, 30*time.Second, "the small prefetch", func() bool { return prefetch() == 16 })
			close(feeding)
			<-fed
			slow.Store(false)
			eventually(t, 60*time.Second, "every message was handled", func() bool { d, _ := r.calls(); return d == n })
			if _, total := r.calls(); total != n || again.Load() != 0 {
				t.Errorf("got %d calls, %d of them redeliveries, want %d, 0", total, again.Load(), n)
			}
			if got := r.c.Status().Sessions; got != 1 {
				t.Errorf("sessions: got %d, want 1", got)
			}
		})
	}
}

func TestASingleActiveConsumerKeepsItsPlace(t *testing.T) {
	t.Parallel()
	o := Options{
		Prefetch: 32, MaxPrefetch: 256, MaxBytes: 64 << 20, BodySize: 16 << 20,
		Declare: &Declare{Arguments: inbox.Table{singleActiveArg: true}},
	}
	f := o.newFlow()
	f.sizes.n.Store(1000)
	if got := f.first(); got != 32 {
		t.Errorf("prefetch: got %d, want 32", got)
	}
	for range 2 * slowLooks {
		for _, l := range []look{{prefetch: 32, busy: true, settled: 5000}, {prefetch: 256, open: 256, busy: true}} {
			if got, _ := f.after(l, time.Now()); got != 0 {
				t.Fatalf("after %+v: got %d, want 0", l, got)
			}
		}
	}
}

// TestBytesOfALostSessionAreGivenBack: those in the library's buffers, and those
// of handlers that end later.
func TestBytesOfALostSessionAreGivenBack(t *testing.T) {
	t.Parallel()
	const n = 8
	var proxy *testenv.Proxy
	url := testenv.AMQPURL(t)
	proxy, via := proxied(t, url)
	l := startLarge(t, n, quorum, func(o *Options) { quick(o); o.Broker.Credentials = URLs(via) })
	for range 3 {
		eventually(t, 20*time.Second, "the room is full", func() bool { return l.c.hand.bytes() == largeRoom })
		sessions := l.c.Status().Sessions
		proxy.Cut()
		eventually(t, 20*time.Second, "another session consumes", func() bool { s := l.c.Status(); return s.Sessions > sessions && s.Consuming })
	}
	close(l.allow)
	eventually(t, 60*time.Second, "every message was handled", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.handled) == n
	})
	eventually(t, 10*time.Second, "nothing is in hand", func() bool { return l.c.hand.bytes() == 0 })
	if left := l.left(); left != 0 {
		t.Errorf("left in the queue: got %d, want 0", left)
	}
}
