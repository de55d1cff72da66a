package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/inboxd/inboxd/internal/testenv"
)

// lot is a parking exchange, with a queue bound to it or not.
type lot struct {
	t               *testing.T
	amqpURL         string
	exchange, queue string
	twice           bool // a message may be there twice
}

const parkingKey = "billing.parked"

func newLot(t *testing.T, amqpURL string) *lot {
	return &lot{t: t, amqpURL: amqpURL, exchange: testenv.UniqueName("e2e-parking"), queue: testenv.UniqueName("e2e-parked")}
}

// do runs f on a channel of its own.
func (l *lot) do(f func(ch *amqp.Channel) error) {
	l.t.Helper()
	conn, err := amqp.Dial(l.amqpURL)
	if err != nil {
		l.t.Fatal(err)
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err == nil {
		err = f(ch)
	}
	if err != nil {
		l.t.Fatal(err)
	}
}

func (l *lot) declareExchange() {
	l.t.Helper()
	l.do(func(ch *amqp.Channel) error {
		return ch.ExchangeDeclare(l.exchange, "direct", true, false, false, false, nil)
	})
	l.t.Cleanup(func() { l.do(func(ch *amqp.Channel) error { return ch.ExchangeDelete(l.exchange, false, false) }) })
}

func (l *lot) declareQueue(args amqp.Table) {
	l.t.Helper()
	l.do(func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(l.queue, true, false, false, false, args)
		return err
	})
	l.t.Cleanup(func() { _ = testenv.DeleteQueue(l.amqpURL, l.queue) })
}

func (l *lot) bind() {
	l.t.Helper()
	l.do(func(ch *amqp.Channel) error { return ch.QueueBind(l.queue, parkingKey, l.exchange, false, nil) })
}

// take removes n messages, or as many as there are, and returns them by ID.
func (l *lot) take(n int) map[string]amqp.Delivery {
	l.t.Helper()
	got := map[string]amqp.Delivery{}
	l.do(func(ch *amqp.Channel) error {
		for range n {
			m, ok, err := ch.Get(l.queue, true)
			if err != nil || !ok {
				return err
			}
			if _, twice := got[m.MessageId]; twice && !l.twice {
				l.t.Errorf("%s was parked twice", m.MessageId)
			}
			got[m.MessageId] = m
		}
		return nil
	})
	return got
}

// consumer is the part of the configuration.
func (l *lot) consumer() string {
	return fmt.Sprintf("    park: {exchange: %q, routing_key: %s}\n", l.exchange, parkingKey)
}

// rejecting is a handler that refuses what is called bad.
func rejecting(t *testing.T) *app {
	return newApp(t, func(w http.ResponseWriter, _ *http.Request, key string, _ []byte) {
		if strings.HasPrefix(key, "bad-") {
			w.WriteHeader(http.StatusUnprocessableEntity)
			fmt.Fprint(w, "no such order")
		}
	})
}

// TestWhatCannotBeParkedIsNotAcked: three messages are refused and there is no
// place for them. They stay in hand, their neighbours are processed, nothing is
// lost, and they are parked once there is a place.
func TestWhatCannotBeParkedIsNotAcked(t *testing.T) {
	t.Parallel()
	amqpURL := testenv.AMQPURL(t)
	const bad, good = 3, 200
	for name, tc := range map[string]struct {
		spoil func(*lot)
		mend  func(*lot)
	}{
		"exchange missing": {
			spoil: func(*lot) {},
			mend:  func(l *lot) { l.declareQueue(nil); l.declareExchange(); l.bind() },
		},
		"queue full": {
			spoil: func(l *lot) {
				l.declareExchange()
				l.declareQueue(amqp.Table{"x-max-length": int32(bad), "x-overflow": "reject-publish"})
				l.bind()
				fill, _ := orders("filler", bad, 0)
				publish(l.t, l.amqpURL, l.queue, fill...)
			},
			mend: func(l *lot) { // what fills it goes, the parked come behind
				for id := range l.take(bad) {
					if !strings.HasPrefix(id, "filler") {
						l.t.Errorf("%s was in the full queue", id)
					}
				}
			},
		},
		"no queue bound": {
			spoil: func(l *lot) { l.declareExchange(); l.declareQueue(nil) },
			mend:  func(l *lot) { l.bind() },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q := queue(t, amqpURL, "quorum")
			l := newLot(t, amqpURL)
			tc.spoil(l)
			handler := rejecting(t)
			d := newDaemon(t, settings{amqp: amqpURL, queue: q, handler: handler.URL, consumer: l.consumer()})
			d.start()
			d.awaitConsuming(20 * time.Second)
			refused, _ := orders("bad", bad, 0)
			publish(t, amqpURL, q, refused...)
			eventually(t, 30*time.Second, "every refused message was tried to be parked", func() bool {
				keys, _ := handler.counts()
				return keys == bad && d.metric("inboxd_park_failures_total") >= bad
			})
			taken, _ := orders("good", good, 0)
			publish(t, amqpURL, q, taken...)
			eventually(t, 30*time.Second, "their neighbours are processed", func() bool { return d.outcome("processed") == good })
			if parked := d.outcome("parked"); parked != 0 {
				t.Errorf("got %d parked without a place for them", parked)
			}
			// An ack may wait for older messages for a moment, and these stay.
			eventually(t, 30*time.Second, "their neighbours are acked", func() bool {
				return d.metric("inboxd_settled_total", `decision="ack"`) == good
			})
			// None of the others is: killed now, the daemon gets all of them again.
			d.kill()
			eventually(t, 30*time.Second, "they are back on the queue", func() bool {
				n, _, err := testenv.QueueState(amqpURL, q)
				return err == nil && n == bad
			})
			d.start()
			eventually(t, 30*time.Second, "they are tried again", func() bool { return d.metric("inboxd_park_failures_total") >= 1 })
			tc.mend(l)
			eventually(t, time.Minute, "they are parked", func() bool { return d.outcome("parked") == bad })
			d.awaitSettled(amqpURL, q, 30*time.Second)
			d.stop()
			if got := l.take(100); len(got) != bad {
				t.Errorf("got %d messages in the parking queue, want %d", len(got), bad)
			}
		})
	}
}

// TestAParkedCopySaysWhereItComesFromAndCanGoAnywhere: whole, with its origin in
// headers, and without what would make the broker multiply, expire or drop it.
func TestAParkedCopySaysWhereItComesFromAndCanGoAnywhere(t *testing.T) {
	t.Parallel()
	amqpURL := testenv.AMQPURL(t)
	q := queue(t, amqpURL, "classic")
	l := newLot(t, amqpURL)
	l.declareExchange()
	l.declareQueue(nil)
	l.bind()
	handler := newApp(t, func(w http.ResponseWriter, _ *http.Request, key string, _ []byte) {
		switch key {
		case "refused":
			w.WriteHeader(http.StatusUnprocessableEntity)
		case "failing":
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	d := newDaemon(t, settings{amqp: amqpURL, queue: q, handler: handler.URL, consumer: l.consumer() + quickRetry})
	d.start()
	d.awaitConsuming(20 * time.Second)
	message := func(id string) amqp.Publishing {
		return amqp.Publishing{
			MessageId: id, ContentType: "application/json", CorrelationId: "corr-1", Type: "order.paid", Expiration: "3600000",
			Body: []byte(`{"order_id":"` + id + `"}`),
			Headers: amqp.Table{
				"x-death":                amqp.Table{"count": int64(3)},
				"x-first-death-exchange": "dead",
				"tenant":                 "acme",
				"CC":                     []any{q + ".copy"},
			},
		}
	}
	publish(t, amqpURL, q, message("refused"), message("failing"))
	eventually(t, 30*time.Second, "both are parked", func() bool { return d.outcome("parked") == 2 })
	d.stop()
	got := l.take(100)
	for id, want := range map[string]map[string]any{
		"refused": {
			"x-inboxd-reason": "rejected", "x-inboxd-attempts": int64(0), "x-inboxd-requests": int64(1),
			"x-inboxd-status": int64(422),
		},
		"failing": {
			"x-inboxd-reason": "attempts", "x-inboxd-attempts": int64(3), "x-inboxd-requests": int64(3),
			"x-inboxd-status": int64(500),
		},
	} {
		m, ok := got[id]
		if !ok {
			t.Errorf("%s is not in the parking queue", id)
			continue
		}
		if string(m.Body) != string(message(id).Body) || m.CorrelationId != "corr-1" || m.Type != "order.paid" ||
			m.ContentType != "application/json" || m.DeliveryMode != amqp.Persistent || m.Expiration != "" {
			t.Errorf("%s: the copy is not whole: %+v", id, m)
		}
		want["x-inboxd-consumer"], want["x-inboxd-message-id"] = "billing", id
		want["x-inboxd-queue"], want["x-inboxd-routing-key"] = q, q
		want["x-inboxd-expiration"], want["tenant"] = "3600000", "acme"
		for name, value := range want {
			if m.Headers[name] != value {
				t.Errorf("%s: header %s: got %v, want %v", id, name, m.Headers[name], value)
			}
		}
		for _, name := range []string{"x-death", "x-first-death-exchange", "CC", "BCC"} {
			if v, ok := m.Headers[name]; ok {
				t.Errorf("%s: header %s was copied: %v", id, name, v)
			}
		}
	}
}

// TestABrokerAlarmDelaysParkingAndNoAck: the broker takes no messages, and still
// takes acks from a connection that never publishes.
func TestABrokerAlarmDelaysParkingAndNoAck(t *testing.T) {
	t.Parallel()
	r := privateRabbit(t)
	const q, bad, good = "orders", 3, 100
	if err := testenv.DeclareQueue(r.URL, q, amqp.Table{"x-queue-type": "classic"}); err != nil {
		t.Fatal(err)
	}
	l := newLot(t, r.URL)
	// What a life that was killed had written into its socket before the broker
	// blocked it is read after the alarm.
	l.twice = true
	l.declareQueue(nil)
	l.do(func(ch *amqp.Channel) error {
		return ch.ExchangeDeclare(l.exchange, "direct", true, false, false, false, nil)
	})
	l.bind()
	refused, _ := orders("bad", bad, 0)
	taken, _ := orders("good", good, 0)
	publish(t, r.URL, q, append(refused, taken...)...)
	alarm := func(fraction string) {
		t.Helper()
		if out, err := r.Ctl("set_vm_memory_high_watermark", fraction); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	alarm("0.00001")
	eventually(t, 30*time.Second, "the broker blocks publishers", func() bool { return isBlocked(t, r.URL) })

	handler := rejecting(t)
	d := newDaemon(t, settings{amqp: r.URL, queue: q, handler: handler.URL, consumer: l.consumer()})
	d.start()
	eventually(t, time.Minute, "the others are processed under the alarm", func() bool { return d.outcome("processed") == good })
	eventually(t, time.Minute, "parking fails", func() bool { return d.metric("inboxd_park_failures_total") >= 1 })
	if parked := d.outcome("parked"); parked != 0 {
		t.Errorf("got %d parked under the alarm", parked)
	}
	// The acks have reached the broker: killed now, only the refused come back.
	d.kill()
	eventually(t, 30*time.Second, "the refused are back on the queue, and nothing else", func() bool {
		n, _, err := testenv.QueueState(r.URL, q)
		return err == nil && n == bad
	})
	d.start()
	d.awaitConsuming(30 * time.Second)
	alarm("0.4")
	eventually(t, 2*time.Minute, "they are parked", func() bool { return d.outcome("parked") == bad })
	d.awaitSettled(r.URL, q, 30*time.Second)
	d.stop()
	got := l.take(100)
	for i := range bad {
		if id := fmt.Sprint("bad-", i); got[id].MessageId != id {
			t.Errorf("%s is not in the parking queue", id)
		}
	}
	if _, total := handler.counts(); total > good+2*bad {
		t.Errorf("got %d requests, want one a message and one more for each that came back", total)
	}
}

// isBlocked reports whether the broker stops a connection that publishes.
func isBlocked(t *testing.T, amqpURL string) bool {
	conn, err := amqp.Dial(amqpURL)
	if err != nil {
		t.Fatal(err)
	}
	blocked := conn.NotifyBlocked(make(chan amqp.Blocking, 1))
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := ch.PublishWithContext(ctx, "", "nowhere", false, false, amqp.Publishing{}); err != nil {
		return false
	}
	select {
	case b := <-blocked:
		return b.Active // the connection is left open: its close would not be read
	case <-time.After(2 * time.Second):
		_ = conn.Close()
		return false
	}
}
