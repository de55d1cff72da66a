package consumer

import (
	"bytes"
	"context"
	"errors"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/inboxd/inboxd/internal/inbox"
	"github.com/inboxd/inboxd/internal/testenv"
)

func newParking(t *testing.T, url, queue string, tune func(*PublisherOptions)) *Publisher {
	t.Helper()
	o := PublisherOptions{Broker: Broker{Credentials: URLs(url)}, Name: "test", RoutingKey: queue}
	if tune != nil {
		tune(&o)
	}
	p := NewPublisher(o, testLog(t))
	t.Cleanup(func() { p.Close() })
	return p
}

func parkingQueue(t *testing.T, url string, args amqp.Table) string {
	t.Helper()
	queue := testenv.UniqueName("parking")
	if err := testenv.DeclareQueue(url, queue, args); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { testenv.DeleteQueue(url, queue) })
	return queue
}

// fetch takes one message off a queue.
func fetch(t *testing.T, url, queue string) amqp.Delivery {
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
	d, ok, err := ch.Get(queue, true)
	if err != nil || !ok {
		t.Fatalf("get = %t, %v, want a message", ok, err)
	}
	return d
}

func parkedMessage() *inbox.ParkedMessage {
	return &inbox.ParkedMessage{
		Consumer: "billing", MessageID: "id-1", Reason: inbox.AttemptsUsed, Attempts: 10, Requests: 12, LastStatus: 500,
		Error: strings.Repeat("é", 2000), Queue: "orders", FirstReceived: time.Unix(1700000000, 0), LastAttempt: time.Unix(1700000100, 0),
		Message: inbox.Message{
			Exchange: "shop", RoutingKey: "paid",
			Properties: inbox.Properties{
				ContentType: "application/json", MessageID: "raw id", CorrelationID: "c", UserID: "somebody else", Expiration: "1",
				DeliveryMode: 1, Timestamp: time.Unix(1600000000, 0), Priority: 3, Type: "t", AppID: "a", ReplyTo: "r", ContentEncoding: "gzip",
			},
			Headers: inbox.Table{
				"tenant": "x", "n": 5, "big": uint64(1 << 63), "t": inbox.Table{"d": inbox.Decimal{Scale: 2, Value: 150}}, "l": []any{"a", inbox.Table{}},
				"CC": []any{"elsewhere"}, "BCC": []any{"hidden"}, "x-death": []any{inbox.Table{"count": int64(1)}}, "x-delivery-count": int64(3),
				"x-first-death-queue": "q", "x-inboxd-reason": "old", UnreadableHeaders: "kept",
			},
			Body: []byte("body\x00"),
		},
	}
}

func TestParkedMessageArrivesWholeAndSaysWhereItCameFrom(t *testing.T) {
	t.Parallel()
	url := testenv.AMQPURL(t)
	queue := parkingQueue(t, url, quorum)
	p := newParking(t, url, queue, nil)
	if err := p.Park(t.Context(), parkedMessage()); err != nil {
		t.Fatal(err)
	}
	d := fetch(t, url, queue)
	if d.MessageId != "raw id" || string(d.Body) != "body\x00" || d.ContentType != "application/json" || d.ContentEncoding != "gzip" ||
		d.CorrelationId != "c" || d.ReplyTo != "r" || d.Type != "t" || d.AppId != "a" || !d.Timestamp.Equal(time.Unix(1600000000, 0)) {
		t.Errorf("message = %+v, want the original's properties", d)
	}
	if d.DeliveryMode != amqp.Persistent || d.UserId != "" || d.Expiration != "" {
		t.Errorf("delivery mode %d, user %q, expiration %q, want 2 and neither", d.DeliveryMode, d.UserId, d.Expiration)
	}
	if msg := d.Headers[headerError].(string); len(msg) != 1024 || !strings.HasPrefix(msg, "éé") {
		t.Errorf("error = %d bytes, want 1024", len(msg))
	}
	delete(d.Headers, headerError)
	delete(d.Headers, deliveryCountHeader) // this one is the parking queue's
	want := amqp.Table{
		"tenant": "x", "n": int64(5), "big": "9223372036854775808", "t": amqp.Table{"d": amqp.Decimal{Scale: 2, Value: 150}}, "l": []any{"a", amqp.Table{}},
		UnreadableHeaders: "kept",
		headerReason:      "attempts", headerConsumer: "billing", headerMessageID: "id-1", headerAttempts: int64(10), headerRequests: int64(12),
		headerStatus: int64(500), headerQueue: "orders", headerExchange: "shop", headerRoutingKey: "paid", headerExpiration: "1",
		headerUserID: "somebody else", headerCC: []any{"elsewhere"}, headerBCC: []any{"hidden"}, headerDeliveryMode: int64(1),
		headerFirstReceived: "2023-11-14T22:13:20Z", headerLastAttempt: "2023-11-14T22:15:00Z",
	}
	if !reflect.DeepEqual(d.Headers, want) {
		t.Errorf("headers = %v, want %v", d.Headers, want)
	}
}

func TestParkSaysWhenNothingTookTheMessage(t *testing.T) {
	t.Parallel()
	url := testenv.AMQPURL(t)
	full := parkingQueue(t, url, amqp.Table{"x-max-length": 1, "x-overflow": "reject-publish"})
	gone := testenv.UniqueName("gone")

	p := newParking(t, url, gone, nil)
	for range 2 { // the second on the same connection
		if err := p.Park(t.Context(), parkedMessage()); !errors.Is(err, ErrUnroutable) {
			t.Errorf("no queue: Park = %v, want %v", err, ErrUnroutable)
		}
	}
	p = newParking(t, url, full, nil)
	if err := p.Park(t.Context(), parkedMessage()); err != nil {
		t.Errorf("first message: Park = %v, want nil", err)
	}
	if err := p.Park(t.Context(), parkedMessage()); err == nil || errors.Is(err, ErrUnroutable) {
		t.Errorf("full queue: Park = %v, want that it was refused", err)
	}
	p = newParking(t, url, "key", func(o *PublisherOptions) { o.Exchange = testenv.UniqueName("no-exchange") })
	if err := p.Park(t.Context(), parkedMessage()); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("no exchange: Park = %v, want the broker's 404", err)
	}
	p = newParking(t, url, full, func(o *PublisherOptions) { o.MaxBody = 4 })
	if err := p.Park(t.Context(), parkedMessage()); !errors.Is(err, ErrBodyTooLarge) {
		t.Errorf("large body: Park = %v, want %v", err, ErrBodyTooLarge)
	}
}

func TestParkingGoesOnAfterTheConnectionBroke(t *testing.T) {
	t.Parallel()
	url := testenv.AMQPURL(t)
	proxy, via := proxied(t, url)
	queue := parkingQueue(t, url, classic)
	p := newParking(t, via, queue, nil)
	if err := p.Park(t.Context(), parkedMessage()); err != nil {
		t.Fatal(err)
	}
	proxy.Cut()
	eventually(t, 5*time.Second, "a message is parked again", func() bool { return p.Park(t.Context(), parkedMessage()) == nil })

	proxy.Pause()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	begun := time.Now()
	if err := p.Park(ctx, parkedMessage()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("black hole: Park = %v, want %v", err, context.DeadlineExceeded)
	}
	if took := time.Since(begun); took > 3*time.Second {
		t.Errorf("black hole: Park took %s, want about its ctx", took)
	}
	proxy.Resume()
	if err := p.Park(t.Context(), parkedMessage()); err != nil {
		t.Errorf("afterwards: Park = %v, want nil", err)
	}
}

func TestHugeHeadersAreCutToWhatAFrameHolds(t *testing.T) {
	t.Parallel()
	url := testenv.AMQPURL(t)
	queue := parkingQueue(t, url, classic)
	p := newParking(t, url, queue, nil)
	m := parkedMessage()
	m.Headers = inbox.Table{"small": "kept"}
	for _, k := range []string{"a", "b", "c"} {
		m.Headers[k] = strings.Repeat("x", 40<<10)
	}
	m.Body = bytes.Repeat([]byte{1}, 1<<20)
	if err := p.Park(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	d := fetch(t, url, queue)
	if d.Headers["small"] != "kept" || d.Headers[headerOmitted] != int64(2) || len(d.Body) != 1<<20 {
		t.Errorf("small = %v, omitted = %v, body %d, want kept, 2, %d", d.Headers["small"], d.Headers[headerOmitted], len(d.Body), 1<<20)
	}
}

func TestConcurrentParkingLosesNothing(t *testing.T) {
	t.Parallel()
	url := testenv.AMQPURL(t)
	queue := parkingQueue(t, url, quorum)
	p := newParking(t, url, queue, nil)
	const n = 200
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			if err := p.Park(t.Context(), parkedMessage()); err != nil {
				t.Errorf("Park = %v, want nil", err)
			}
		})
	}
	wg.Wait()
	eventually(t, 5*time.Second, "all are in the parking queue", func() bool {
		got, _, err := testenv.QueueState(url, queue)
		return err == nil && got == n
	})
}

func TestPublisherExamineFindsWhatIsMissing(t *testing.T) {
	t.Parallel()
	url := testenv.AMQPURL(t)
	queue := parkingQueue(t, url, classic)
	for _, tc := range []struct {
		exchange, key string
		want          string
	}{
		{"", queue, inbox.LevelOK},
		{"", "no-such-queue", inbox.LevelFail},
		{"amq.topic", "k", inbox.LevelOK},
		{"no-such-exchange", "k", inbox.LevelFail},
	} {
		p := newParking(t, url, tc.key, func(o *PublisherOptions) { o.Exchange = tc.exchange })
		if got := p.Examine(t.Context()); len(got) != 1 || got[0].Level != tc.want {
			t.Errorf("exchange %q, key %q: %+v, want one finding %s", tc.exchange, tc.key, got, tc.want)
		}
	}
}
