package consumer

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"reflect"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/inboxd/inboxd/internal/inbox"
	"github.com/inboxd/inboxd/internal/testenv"
)

// otherClient writes header tables as another client library would.
type otherClient struct {
	net.Conn
	old, new []byte
}

func (c *otherClient) Write(p []byte) (int, error) {
	if _, err := c.Conn.Write(bytes.ReplaceAll(p, c.old, c.new)); err != nil {
		return 0, err
	}
	return len(p), nil
}

func TestIntegersOfPyAMQPDoNotStopTheQueue(t *testing.T) {
	t.Parallel()
	for name, args := range map[string]amqp.Table{"classic": classic, "quorum": quorum} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			headers := map[string]inbox.Table{}
			r := startRig(t, rigOptions{args: args, handler: func(_ context.Context, d *inbox.Delivery) inbox.Result {
				mu.Lock()
				defer mu.Unlock()
				delete(d.Headers, deliveryCountHeader)
				headers[string(d.Body)] = d.Headers
				return inbox.Result{Outcome: inbox.Processed}
			}})
			conn, err := amqp.DialConfig(r.url, amqp.Config{Dial: func(network, addr string) (net.Conn, error) {
				c, err := net.Dial(network, addr)
				return &otherClient{c, []byte("\x03bigl"), []byte("\x03bigL")}, err
			}})
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			ch, err := conn.Channel()
			if err != nil {
				t.Fatal(err)
			}
			for _, body := range []string{"one", "two"} {
				err := ch.Publish("", r.queue, true, false, amqp.Publishing{
					Headers: amqp.Table{"big": int64(1) << 40, "in": amqp.Table{"big": int64(-1)}}, Body: []byte(body),
				})
				if err != nil {
					t.Fatal(err)
				}
			}
			eventually(t, 10*time.Second, "both messages were handled", func() bool { d, _ := r.calls(); return d == 2 })
			r.end()
			want := inbox.Table{"big": int64(1) << 40, "in": inbox.Table{"big": int64(-1)}}
			for body, got := range headers {
				if !reflect.DeepEqual(got, want) {
					t.Errorf("headers of %s = %v, want %v", body, got, want)
				}
			}
			if n := r.c.Status().Sessions; n != 1 {
				t.Errorf("sessions = %d, want 1", n)
			}
			// A classic queue hands out the producer's bytes, a quorum queue its own.
			if n := testutil.ToFloat64(r.c.metrics.rewritten); name == "classic" && n != 2 {
				t.Errorf("header tables rewritten = %v, want 2", n)
			}
		})
	}
}

func TestDeliveryArrivesWhole(t *testing.T) {
	t.Parallel()
	got := make(chan *inbox.Delivery, 2)
	r := startRig(t, rigOptions{args: quorum, handler: func(_ context.Context, d *inbox.Delivery) inbox.Result {
		got <- d
		if d.Redelivered {
			return inbox.Result{Outcome: inbox.Processed}
		}
		return inbox.Result{Outcome: inbox.Returned}
	}})
	stamp := time.Unix(1700000000123, 0) // milliseconds, as some producers write them
	r.publish(1, 1, func(_ int, p *amqp.Publishing) {
		*p = amqp.Publishing{
			ContentType: "application/json", ContentEncoding: "utf-8", DeliveryMode: 2, Priority: 4, CorrelationId: "c", ReplyTo: "r",
			Expiration: "60000", MessageId: "\x00\xff id", Timestamp: stamp, Type: "t", UserId: "guest", AppId: "a", Body: []byte("\x00body"),
			Headers: amqp.Table{"n": nil, "d": amqp.Decimal{Scale: 1, Value: 15}, "l": []any{amqp.Table{"b": []byte{1}}, true}, "u": uint32(1 << 31)},
		}
	})
	first, second := <-got, <-got
	want := inbox.Message{
		RoutingKey: r.queue,
		Properties: inbox.Properties{
			ContentType: "application/json", ContentEncoding: "utf-8", DeliveryMode: 2, Priority: 4, CorrelationID: "c", ReplyTo: "r",
			Expiration: "60000", MessageID: "\x00\xff id", Timestamp: stamp, Type: "t", UserID: "guest", AppID: "a",
		},
		Headers: inbox.Table{"n": nil, "d": inbox.Decimal{Scale: 1, Value: 15}, "l": []any{inbox.Table{"b": []byte{1}}, true}, "u": uint32(1 << 31)},
		Body:    []byte("\x00body"),
	}
	delete(first.Headers, deliveryCountHeader)
	if !reflect.DeepEqual(first.Message, want) {
		t.Errorf("message = %+v, want %+v", first.Message, want)
	}
	if first.Queue != r.queue || first.Redelivered || first.DeliveryCount > 0 {
		t.Errorf("queue %q, redelivered %t, count %d, want %q, false, none", first.Queue, first.Redelivered, first.DeliveryCount, r.queue)
	}
	if !second.Redelivered || second.DeliveryCount != 1 {
		t.Errorf("second: redelivered %t, count %d, want true, 1", second.Redelivered, second.DeliveryCount)
	}
}

func TestMetricsFollowTheSession(t *testing.T) {
	t.Parallel()
	url := testenv.AMQPURL(t)
	queue := testenv.UniqueName("metrics")
	if err := testenv.DeclareQueue(url, queue, classic); err != nil {
		t.Fatal(err)
	}
	defer testenv.DeleteQueue(url, queue)
	reg := prometheus.NewPedanticRegistry()
	gate := inbox.NewGate()
	c := New(Options{Broker: Broker{Credentials: URLs(url)}, Consumer: "a", Queue: queue}, processed, gate, testLog(t), reg)
	New(Options{Broker: Broker{Credentials: URLs(url)}, Consumer: "b", Queue: queue}, processed, gate, testLog(t), reg)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	eventually(t, 10*time.Second, "the consumer is registered", func() bool { return c.Status().Consuming })
	publishTo(t, url, queue, 0, 3)
	eventually(t, 10*time.Second, "three acks", func() bool { return testutil.ToFloat64(c.metrics.settled[inbox.Ack]) == 3 })
	compare := func(want string) {
		t.Helper()
		if err := testutil.GatherAndCompare(reg, bytes.NewBufferString(want), "inboxd_broker_connected", "inboxd_consuming", "inboxd_broker_sessions_total"); err != nil {
			t.Error(err)
		}
	}
	text := func(on string) string {
		return `
# HELP inboxd_broker_connected 1 while there is a connection to the broker.
# TYPE inboxd_broker_connected gauge
inboxd_broker_connected{consumer="a"} ` + on + `
inboxd_broker_connected{consumer="b"} 0
# HELP inboxd_broker_sessions_total Sessions that came to consume.
# TYPE inboxd_broker_sessions_total counter
inboxd_broker_sessions_total{consumer="a"} 1
inboxd_broker_sessions_total{consumer="b"} 0
# HELP inboxd_consuming 1 while the consumer is registered at the broker.
# TYPE inboxd_consuming gauge
inboxd_consuming{consumer="a"} ` + on + `
inboxd_consuming{consumer="b"} 0
`
	}
	compare(text("1"))
	stop()
	if err := <-ended; err != nil {
		t.Errorf("Run = %v, want nil", err)
	}
	compare(text("0"))
}

// TestReconnectsLeaveNoGoroutines is not parallel: it counts goroutines.
func TestReconnectsLeaveNoGoroutines(t *testing.T) {
	f := startFakeBroker(t)
	before := runtime.NumGoroutine()
	r := startRig(t, rigOptions{url: f.url(), tune: func(o *Options) {
		o.Broker.MinBackoff, o.Broker.MaxBackoff = time.Microsecond, time.Millisecond
	}})
	for i := range 300 {
		c := <-f.consumed
		if err := c.deliver(contentHeader(nil, "m", 1), "x"); err != nil {
			t.Fatal(err)
		}
		switch i % 3 {
		case 0:
			c.Close()
		case 1:
			c.method(1, 60, 30, shortstr(c.tag), []byte{1}) // basic.cancel
		case 2:
			c.method(1, 20, 40, []byte{0x02, 0x1d}, shortstr("INTERNAL_ERROR"), []byte{0, 0, 0, 0}) // channel.close 541
		}
	}
	r.end()
	eventually(t, 10*time.Second, "the goroutines are gone", func() bool { return runtime.NumGoroutine() <= before+2 })
}

func BenchmarkConsumeAndAck(b *testing.B) {
	url := testenv.AMQPURL(b)
	queue := testenv.UniqueName("bench")
	if err := testenv.DeclareQueue(url, queue, classic); err != nil {
		b.Fatal(err)
	}
	defer testenv.DeleteQueue(url, queue)
	conn, err := amqp.Dial(url)
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		b.Fatal(err)
	}
	for range b.N {
		if err := ch.Publish("", queue, false, false, amqp.Publishing{Body: make([]byte, 1024)}); err != nil {
			b.Fatal(err)
		}
	}
	done := make(chan struct{}, b.N)
	c := New(Options{Broker: Broker{Credentials: URLs(url)}, Consumer: "bench", Queue: queue, Prefetch: 64},
		func(context.Context, *inbox.Delivery) inbox.Result {
			done <- struct{}{}
			return inbox.Result{Outcome: inbox.Processed}
		}, inbox.NewGate(), slog.New(slog.DiscardHandler), nil)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	b.ResetTimer()
	b.ReportAllocs()
	go func() { ended <- c.Run(ctx) }()
	for range b.N {
		<-done
	}
	stop()
	<-ended
}
