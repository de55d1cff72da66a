package consumer

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/inboxd/inboxd/internal/inbox"
	"github.com/inboxd/inboxd/internal/testenv"
)

// proxied returns a proxy before the broker of url, and the URL through it.
func proxied(t *testing.T, url string) (*testenv.Proxy, string) {
	t.Helper()
	uri, err := amqp.ParseURI(url)
	if err != nil {
		t.Fatal(err)
	}
	addr := net.JoinHostPort(uri.Host, strconv.Itoa(uri.Port))
	p, err := testenv.NewProxy(addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p, strings.Replace(url, addr, p.Addr, 1)
}

func quick(o *Options) {
	o.Broker.MaxBackoff = 200 * time.Millisecond
	o.Broker.Heartbeat = 2 * time.Second
}

func TestLateAckNeverReachesTheNextSession(t *testing.T) {
	t.Parallel()
	for name, args := range map[string]amqp.Table{"classic": classic, "quorum": quorum} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := testenv.AMQPURL(t)
			proxy, via := proxied(t, url)
			late := make(chan struct{})
			var calls, ended atomic.Int32
			r := startRig(t, rigOptions{
				url: url, via: via, args: args, tune: func(o *Options) { quick(o); o.Prefetch = 2 },
				handler: func(ctx context.Context, d *inbox.Delivery) inbox.Result {
					if calls.Add(1) > 2 { // the second session holds them and then gives them back
						<-ctx.Done()
						return inbox.Result{Outcome: inbox.Returned}
					}
					<-ctx.Done() // told that its session is lost
					<-late
					defer ended.Add(1)
					return inbox.Result{Outcome: inbox.Processed}
				},
			})
			r.publish(1, 3)
			eventually(t, 5*time.Second, "both handlers of the first session run", func() bool { return calls.Load() == 2 })
			proxy.Cut()
			eventually(t, 10*time.Second, "the second session has two deliveries", func() bool { return calls.Load() == 4 })
			if n := r.c.Status().Running; n != 4 {
				t.Errorf("handlers running = %d, want 4: those of the lost session go on", n)
			}
			close(late)
			eventually(t, 5*time.Second, "the late results were given", func() bool { return ended.Load() == 2 && r.c.Status().Running == 2 })
			if left := r.left(); left != 3 {
				t.Errorf("left in the queue = %d, want 3: nobody acked in the session that stands", left)
			}
			if n := calls.Load(); n != 4 {
				t.Errorf("handler calls = %d, want 4: a late ack made room for another delivery", n)
			}
		})
	}
}

func TestForcedReconnectsLeaveOneConsumerAndLoseNothing(t *testing.T) {
	t.Parallel()
	url := testenv.AMQPURL(t)
	proxy, via := proxied(t, url)
	r := startRig(t, rigOptions{url: url, via: via, args: quorum, tune: func(o *Options) {
		quick(o)
		o.Broker.MaxBackoff = 10 * time.Millisecond
		o.Broker.MinBackoff = time.Millisecond
	}})
	const cuts, each = 50, 40
	for i := range cuts {
		r.publish(i*each, each)
		r.consuming(10 * time.Second)
		n := r.c.Status().Sessions
		proxy.Cut()
		eventually(t, 10*time.Second, "the session was replaced", func() bool { return r.c.Status().Sessions > n })
	}
	eventually(t, 20*time.Second, "every message was handled", func() bool { d, _ := r.calls(); return d == cuts*each })
	eventually(t, 5*time.Second, "one consumer is registered", func() bool {
		n, err := testenv.ConsumerCount(url, r.queue)
		return err == nil && n == 1
	})
	if left := r.left(); left != 0 {
		t.Errorf("left in the queue = %d, want 0", left)
	}
}

func TestDeletedQueueIsConsumedAgainOnceItIsBack(t *testing.T) {
	t.Parallel()
	for name, args := range map[string]amqp.Table{"classic": classic, "quorum": quorum} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := startRig(t, rigOptions{args: args})
			r.consuming(10 * time.Second)
			if err := testenv.DeleteQueue(r.url, r.queue); err != nil {
				t.Fatal(err)
			}
			eventually(t, 5*time.Second, "the loss is noticed", func() bool { return !r.c.Status().Consuming })
			eventually(t, 5*time.Second, "the reason is told", func() bool { return strings.Contains(r.c.Status().LastError, "404") })
			r.declare(args)
			r.consuming(5 * time.Second)
			r.publish(0, 10)
			eventually(t, 5*time.Second, "messages are handled", func() bool { d, _ := r.calls(); return d == 10 })
		})
	}
}

func TestQueueMayComeAfterTheConsumer(t *testing.T) {
	t.Parallel()
	r := startRig(t, rigOptions{})
	eventually(t, 5*time.Second, "the missing queue is told", func() bool { return strings.Contains(r.c.Status().LastError, "404") })
	r.declare(classic)
	t.Cleanup(func() { testenv.DeleteQueue(r.url, r.queue) })
	r.consuming(5 * time.Second)
}

func TestDeclaredQueueIsCreatedAsAsked(t *testing.T) {
	t.Parallel()
	r := startRig(t, rigOptions{tune: func(o *Options) {
		o.Declare = &Declare{Type: "quorum", Arguments: inbox.Table{"x-delivery-limit": 5}}
	}})
	t.Cleanup(func() { testenv.DeleteQueue(r.url, r.queue) })
	r.consuming(10 * time.Second)
	if err := testenv.DeclareQueue(r.url, r.queue, amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": 5}); err != nil {
		t.Errorf("the queue differs from what was asked for: %v", err)
	}
}

func TestBlackHoleIsNoticedByHeartbeat(t *testing.T) {
	t.Parallel()
	url := testenv.AMQPURL(t)
	proxy, via := proxied(t, url)
	r := startRig(t, rigOptions{url: url, via: via, args: classic, tune: func(o *Options) { quick(o); o.Broker.RPCTimeout = time.Second }})
	r.consuming(10 * time.Second)
	proxy.Pause()
	eventually(t, 5*time.Second, "the loss is noticed", func() bool { return !r.c.Status().Consuming })
	proxy.Resume()
	r.consuming(10 * time.Second)
}

func TestGateShutReturnsEverythingAndOpensAgain(t *testing.T) {
	t.Parallel()
	inRequest := make(chan struct{})
	r := startRig(t, rigOptions{args: quorum, handler: func(ctx context.Context, d *inbox.Delivery) inbox.Result {
		if string(d.Body) == "0" { // a request in flight is finished
			<-ctx.Done()
			<-inRequest
			return inbox.Result{Outcome: inbox.Processed}
		}
		<-ctx.Done() // waits for a slot
		return inbox.Result{Outcome: inbox.Returned, Err: ctx.Err()}
	}})
	r.publish(0, 100)
	eventually(t, 5*time.Second, "a prefetch of handlers runs", func() bool { return r.c.Status().Running == 16 })
	r.gate.Shut(inbox.HindranceHandler, "test")
	eventually(t, 5*time.Second, "all but the request in flight went back", func() bool {
		n, _, err := testenv.QueueState(r.url, r.queue)
		return err == nil && n == 99
	})
	if s := r.c.Status(); s.Consuming || s.Running != 1 {
		t.Errorf("status = %+v, want not consuming, one handler running", s)
	}
	close(inRequest)
	eventually(t, 5*time.Second, "the connection is closed", func() bool { return !r.c.Status().Connected })
	r.gate.Open(inbox.HindranceHandler)
	r.consuming(5 * time.Second)
	if left := r.left(); left != 99 {
		t.Errorf("left in the queue = %d, want 99: one was processed", left)
	}
}

func TestStopFinishesRequestsInFlightAndNothingElse(t *testing.T) {
	t.Parallel()
	r := startRig(t, rigOptions{args: classic, handler: func(ctx context.Context, d *inbox.Delivery) inbox.Result {
		if len(d.Body) > 1 {
			<-ctx.Done()
			return inbox.Result{Outcome: inbox.Returned, Err: ctx.Err()}
		}
		<-ctx.Done()
		time.Sleep(200 * time.Millisecond) // the rest of the request
		return inbox.Result{Outcome: inbox.Processed}
	}})
	r.publish(0, 100)
	eventually(t, 5*time.Second, "a prefetch of handlers runs", func() bool { return r.c.Status().Running == 16 })
	took, err := r.end()
	if err != nil || took > time.Second {
		t.Errorf("Run = %v after %s, want nil within 1 s", err, took)
	}
	if left := r.left(); left != 90 {
		t.Errorf("left in the queue = %d, want 90", left)
	}
}

func TestHandlerThatOutlastsTheGraceIsLeftBehind(t *testing.T) {
	t.Parallel()
	forever := make(chan struct{})
	t.Cleanup(func() { close(forever) })
	r := startRig(t, rigOptions{
		args: classic, tune: func(o *Options) { o.Grace = 300 * time.Millisecond },
		handler: func(context.Context, *inbox.Delivery) inbox.Result {
			<-forever
			return inbox.Result{Outcome: inbox.Processed}
		},
	})
	r.publish(0, 1)
	eventually(t, 5*time.Second, "the handler runs", func() bool { return r.c.Status().Running == 1 })
	took, err := r.end()
	if err == nil || took > 2*time.Second {
		t.Errorf("Run = %v after %s, want an error soon after the grace", err, took)
	}
	if left := r.left(); left != 1 {
		t.Errorf("left in the queue = %d, want 1", left)
	}
}

func TestNothingIsReturnedWhileTheConsumerIsRegistered(t *testing.T) {
	t.Parallel()
	f := startFakeBroker(t)
	r := startRig(t, rigOptions{url: f.url(), handler: func(ctx context.Context, d *inbox.Delivery) inbox.Result {
		<-ctx.Done()
		return inbox.Result{Outcome: inbox.Returned, Err: ctx.Err()}
	}})
	c := <-f.consumed
	for range 5 {
		if err := c.deliver(contentHeader(nil, "m", 1), "x"); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, 5*time.Second, "the handlers run", func() bool { return r.c.Status().Running == 5 })
	r.end()
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.settled) != 6 || c.settled[0] != "cancel" || !strings.HasPrefix(c.settled[1], "nack") {
		t.Errorf("the broker heard %v, want cancel and then five nacks: they would come straight back", c.settled)
	}
}

func TestServerCancelEndsTheSessionWithoutAnAck(t *testing.T) {
	t.Parallel()
	f := startFakeBroker(t)
	r := startRig(t, rigOptions{url: f.url(), tune: quick, handler: func(ctx context.Context, d *inbox.Delivery) inbox.Result {
		<-ctx.Done()
		return inbox.Result{Outcome: inbox.Processed}
	}})
	first := <-f.consumed
	if err := first.deliver(contentHeader(nil, "m", 1), "x"); err != nil {
		t.Fatal(err)
	}
	eventually(t, 5*time.Second, "the handler runs", func() bool { return r.c.Status().Running == 1 })
	first.method(1, 60, 30, shortstr(first.tag), []byte{1}) // basic.cancel, as for a consumer timeout since 4.3
	second := <-f.consumed
	if first.tag == second.tag {
		t.Errorf("consumer tag = %s twice, want another in each session", first.tag)
	}
	r.stop()
	<-r.ended
	for i, c := range []*fakeConn{first, second} {
		c.mu.Lock()
		told := c.settled
		if i == 1 && slices.Equal(told, []string{"cancel"}) {
			told = nil // its own end, where it had come to consume
		}
		if len(told) > 0 {
			t.Errorf("session %d: settled = %v, want nothing: the session that delivered was gone", i+1, told)
		}
		c.mu.Unlock()
	}
}

func TestRefusedCredentialsAreTriedSlowlyAndNeverLogged(t *testing.T) {
	t.Parallel()
	url := testenv.AMQPURL(t)
	uri, _ := amqp.ParseURI(url)
	uri.Password = "canary-secret"
	var dials atomic.Int32
	var log bytes.Buffer
	r := startRig(t, rigOptions{url: url, args: classic, log: slog.New(slog.NewTextHandler(&log, nil)), tune: func(o *Options) {
		o.Broker.Credentials = func() ([]string, *tls.Config, error) {
			if dials.Add(1) == 1 {
				return []string{uri.String()}, nil, nil
			}
			return []string{url}, nil, nil // the secret was rotated
		}
	}})
	eventually(t, 10*time.Second, "the refusal is told", func() bool { return r.c.Status().LastError != "" })
	refused := time.Now()
	r.consuming(30 * time.Second)
	if d := time.Since(refused); d < accessPause {
		t.Errorf("tried again after %s, want at least %s", d, accessPause)
	}
	r.end()
	if s := log.String(); !strings.Contains(s, "kind=access") || strings.Contains(s, "canary") {
		t.Errorf("log = %s, want the kind and no secret", s)
	}
}

func TestDeadNodeIsPassedOver(t *testing.T) {
	t.Parallel()
	url := testenv.AMQPURL(t)
	dead, via := proxied(t, url)
	dead.Pause() // accepts and says nothing
	r := startRig(t, rigOptions{url: url, args: classic, tune: func(o *Options) {
		quick(o)
		o.Broker.RPCTimeout = time.Second
		o.Broker.Credentials = URLs(via, url)
	}})
	r.consuming(5 * time.Second)
}

// TestPrivateBrokerFaults needs a broker of its own, which it mistreats.
func TestPrivateBrokerFaults(t *testing.T) {
	testenv.AMQPURL(t) // skips where there are no servers
	t.Parallel()
	rabbit, err := testenv.StartRabbit(testenv.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rabbit.Stop() })
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}

	t.Run("frozen right after the dial", func(t *testing.T) {
		c := New(Options{Broker: Broker{Credentials: URLs(rabbit.URL)}, Consumer: "c", Queue: "q"}, processed, inbox.NewGate(), testLog(t), nil)
		conn, err := c.dialer.dial(t.Context())
		must(err)
		s := &session{c: c, conn: conn, lost: make(chan struct{})}
		must(rabbit.Freeze())
		defer rabbit.Thaw()
		begun := time.Now()
		err = s.begin(t.Context())
		if took := time.Since(begun); !errors.Is(err, errNoAnswer) || took > 6*time.Second {
			t.Errorf("begin = %v after %s, want %v within 6 s", err, took, errNoAnswer)
		}
		s.hangUp()
	})

	r := startRig(t, rigOptions{url: rabbit.URL, args: quorum, tune: func(o *Options) { o.Broker.Heartbeat = 4 * time.Second }})
	r.consuming(20 * time.Second)
	handled := func(t *testing.T, first, n int) {
		t.Helper()
		publishTo(t, rabbit.URL, r.queue, first, n)
		eventually(t, 30*time.Second, "every message was handled", func() bool { d, _ := r.calls(); return d == first+n })
	}
	handled(t, 0, 100)

	t.Run("connections closed by force", func(t *testing.T) {
		n := r.c.Status().Sessions
		_, err := rabbit.Ctl("close_all_connections", "test")
		must(err)
		eventually(t, 5*time.Second, "another session consumes", func() bool { s := r.c.Status(); return s.Sessions > n && s.Consuming })
		handled(t, 100, 100)
	})
	t.Run("alarm delays parking, never an ack", func(t *testing.T) {
		queue := parkingQueue(t, rabbit.URL, classic)
		p := newParking(t, rabbit.URL, queue, func(o *PublisherOptions) { o.Timeout = time.Second })
		must(p.Park(t.Context(), parkedMessage()))
		r.gate.Shut(inbox.HindrancePaused, "test")
		eventually(t, 5*time.Second, "the consumer is gone", func() bool { return !r.c.Status().Connected })
		publishTo(t, rabbit.URL, r.queue, 200, 100)
		_, err := rabbit.Ctl("set_vm_memory_high_watermark", "0.00001")
		must(err)
		for range 3 { // the first one finds out
			if err := p.Park(t.Context(), parkedMessage()); !errors.Is(err, errBlocked) {
				t.Errorf("Park = %v, want %v", err, errBlocked)
			}
		}
		r.gate.Open(inbox.HindrancePaused)
		eventually(t, 10*time.Second, "every message was handled", func() bool { d, _ := r.calls(); return d == 300 })
		eventually(t, 5*time.Second, "every message was acked", func() bool { return testutil.ToFloat64(r.c.metrics.settled[inbox.Ack]) >= 300 })
		_, err = rabbit.Ctl("set_vm_memory_high_watermark", "0.6")
		must(err)
		eventually(t, 10*time.Second, "parking goes on", func() bool { return p.Park(t.Context(), parkedMessage()) == nil })
		must(p.Close())
		// The first, the one that was under way at the alarm, and those after it.
		n, _, err := testenv.QueueState(rabbit.URL, queue)
		if err != nil || n < 2 || n > 4 {
			t.Errorf("parked = %d, %v, want 2 to 4: no copy for each vain attempt", n, err)
		}
	})
	t.Run("frozen while consuming", func(t *testing.T) {
		must(rabbit.Freeze())
		begun := time.Now()
		eventually(t, 12*time.Second, "the loss is noticed", func() bool { return !r.c.Status().Consuming })
		t.Logf("noticed after %s with a heartbeat of 4 s", time.Since(begun))
		must(rabbit.Thaw())
		begun = time.Now()
		r.consuming(15 * time.Second)
		t.Logf("consuming %s after the thaw", time.Since(begun))
		handled(t, 300, 100)
	})
	t.Run("killed and restarted", func(t *testing.T) {
		must(rabbit.Kill())
		eventually(t, 5*time.Second, "the loss is noticed", func() bool { return !r.c.Status().Consuming })
		must(rabbit.Restart())
		begun := time.Now()
		r.consuming(12 * time.Second)
		t.Logf("consuming %s after the restart", time.Since(begun))
		handled(t, 400, 100)
	})
	t.Run("one consumer, nothing left, never a 406", func(t *testing.T) {
		eventually(t, 5*time.Second, "one consumer is registered", func() bool {
			n, err := testenv.ConsumerCount(rabbit.URL, r.queue)
			return err == nil && n == 1
		})
		if left := r.left(); left != 0 {
			t.Errorf("left in the queue = %d, want 0", left)
		}
		log, err := os.ReadFile(rabbit.Log)
		must(err)
		if strings.Contains(strings.ToLower(string(log)), "precondition_failed") {
			t.Error("the broker answered with 406, want never")
		}
	})
}
