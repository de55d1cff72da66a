package consumer

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/inboxd/inboxd/internal/inbox"
	"github.com/inboxd/inboxd/internal/testenv"
)

// rig is a consumer that runs on a queue of its own.
type rig struct {
	t     *testing.T
	url   string // straight to the broker
	queue string
	gate  *inbox.Gate
	c     *Consumer
	stop  context.CancelFunc
	ended chan error

	mu   sync.Mutex
	seen map[string]int // handler calls by body
}

type rigOptions struct {
	url     string // of the broker; default the shared one
	via     string // what the consumer dials; default url
	args    amqp.Table
	tune    func(*Options)
	handler Handler
	log     *slog.Logger
}

// quorum and classic are queue arguments.
var (
	classic = amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeClassic}
	quorum  = amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeQuorum}
)

func processed(context.Context, *inbox.Delivery) inbox.Result {
	return inbox.Result{Outcome: inbox.Processed}
}

func startRig(t *testing.T, o rigOptions) *rig {
	t.Helper()
	if o.url == "" {
		o.url = testenv.AMQPURL(t)
	}
	if o.via == "" {
		o.via = o.url
	}
	if o.log == nil {
		o.log = testLog(t)
	}
	if o.handler == nil {
		o.handler = processed
	}
	r := &rig{
		t: t, url: o.url, queue: testenv.UniqueName("consumer"), gate: inbox.NewGate(),
		ended: make(chan error, 1), seen: make(map[string]int),
	}
	if o.args != nil {
		r.declare(o.args)
		t.Cleanup(func() { testenv.DeleteQueue(o.url, r.queue) })
	}
	opts := Options{
		Broker:   Broker{Credentials: URLs(o.via)},
		Consumer: t.Name(), Queue: r.queue, Prefetch: 16, Grace: 10 * time.Second,
	}
	if o.tune != nil {
		o.tune(&opts)
	}
	r.c = New(opts, func(ctx context.Context, d *inbox.Delivery) inbox.Result {
		r.mu.Lock()
		r.seen[string(d.Body)]++
		r.mu.Unlock()
		return o.handler(ctx, d)
	}, r.gate, o.log, nil)
	ctx, cancel := context.WithCancel(context.Background())
	r.stop = cancel
	go func() { r.ended <- r.c.Run(ctx); close(r.ended) }()
	t.Cleanup(func() {
		cancel()
		<-r.ended
	})
	return r
}

func testLog(t *testing.T) *slog.Logger {
	if os.Getenv("INBOXD_TEST_LOG") == "" {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func (r *rig) declare(args amqp.Table) {
	r.t.Helper()
	if err := testenv.DeclareQueue(r.url, r.queue, args); err != nil {
		r.t.Fatalf("declaring %s: %v", r.queue, err)
	}
}

// end stops the consumer and returns what Run returned and how long it took.
func (r *rig) end() (took time.Duration, err error) {
	begun := time.Now()
	r.stop()
	err = <-r.ended
	return time.Since(begun), err
}

// consuming waits for the consumer to be registered.
func (r *rig) consuming(limit time.Duration) {
	r.t.Helper()
	eventually(r.t, limit, "the consumer is registered", func() bool { return r.c.Status().Consuming })
}

func (r *rig) calls() (distinct, total int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range r.seen {
		total += n
	}
	return len(r.seen), total
}

// left stops the consumer and returns how many messages are in the queue. It
// fetches them, because the counts of a quorum queue lag behind.
func (r *rig) left() int {
	r.t.Helper()
	r.stop()
	<-r.ended
	conn, err := amqp.Dial(r.url)
	if err != nil {
		r.t.Fatal(err)
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		r.t.Fatal(err)
	}
	for n := 0; ; n++ {
		_, ok, err := ch.Get(r.queue, false)
		if err != nil {
			r.t.Fatal(err)
		}
		if !ok {
			return n
		}
	}
}

// publish sends n messages with the bodies first, first+1, …, confirmed.
func (r *rig) publish(first, n int, change ...func(i int, p *amqp.Publishing)) {
	r.t.Helper()
	publishTo(r.t, r.url, r.queue, first, n, change...)
}

func publishTo(t *testing.T, url, queue string, first, n int, change ...func(i int, p *amqp.Publishing)) {
	t.Helper()
	conn, err := amqp.Dial(url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	if err := ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	confirms := make([]*amqp.DeferredConfirmation, 0, n)
	for i := first; i < first+n; i++ {
		p := amqp.Publishing{
			DeliveryMode: amqp.Persistent, MessageId: fmt.Sprint(i), Body: fmt.Append(nil, i),
		}
		for _, f := range change {
			f(i, &p)
		}
		c, err := ch.PublishWithDeferredConfirm("", queue, true, false, p)
		if err != nil {
			t.Fatal(err)
		}
		confirms = append(confirms, c)
	}
	for _, c := range confirms {
		if !c.Wait() {
			t.Fatal("the broker refused a message")
		}
	}
}

// eventually polls, because what is waited for has no other sign.
func eventually(t *testing.T, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", limit, what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}
