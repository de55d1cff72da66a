package e2e

import (
	"os"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/inboxd/inboxd/internal/testenv"
)

// privateRabbit starts a broker that the test may kill.
func privateRabbit(t *testing.T) *testenv.Rabbit {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a broker of its own")
	}
	testenv.AMQPURL(t) // skips, or fails, where there are no servers
	r, err := testenv.StartRabbit(testenv.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Stop(); err != nil {
			t.Errorf("stopping the broker: %v", err)
		}
	})
	return r
}

// TestTheDaemonResumesAfterEveryFaultOfTheBroker goes through the faults one
// after the other with one daemon, so that each finds what the one before left.
func TestTheDaemonResumesAfterEveryFaultOfTheBroker(t *testing.T) {
	t.Parallel()
	r := privateRabbit(t)
	const q = "orders"
	declare := func() {
		t.Helper()
		if err := testenv.DeclareQueue(r.URL, q, amqp.Table{"x-queue-type": "quorum"}); err != nil {
			t.Fatal(err)
		}
	}
	declare()
	declared := time.Now()
	handler := newApp(t, nil)
	d := newDaemon(t, settings{amqp: r.URL, queue: q, handler: handler.URL})
	d.start()
	d.awaitConsuming(20 * time.Second)

	sent := 0
	works := func(after string, within time.Duration) {
		t.Helper()
		messages, _ := orders("after-"+after, 50, 0)
		sent += len(messages)
		publish(t, r.URL, q, messages...)
		eventually(t, within, "messages are handled after: "+after, func() bool { keys, _ := handler.counts(); return keys == sent })
		eventually(t, within, "one consumer is registered after: "+after, func() bool {
			n, err := testenv.ConsumerCount(r.URL, q)
			return err == nil && n == 1
		})
	}
	notConsuming := func(within time.Duration) {
		t.Helper()
		eventually(t, within, "the daemon sees that it does not consume", func() bool { c, _ := d.get("/consuming"); return c == 503 })
	}
	works("start", 10*time.Second)

	if out, err := r.Ctl("close_all_connections", "test"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	works("forced close", 10*time.Second)

	// RabbitMQ does not bring a quorum queue back that it declared just before it
	// was killed, and tells nobody when it would (see testenv.Rabbit.Kill).
	time.Sleep(time.Until(declared.Add(5 * time.Second)))
	if err := r.Kill(); err != nil {
		t.Fatal(err)
	}
	notConsuming(20 * time.Second)
	if err := r.Restart(); err != nil {
		t.Fatal(err)
	}
	works("kill of the node", 30*time.Second)

	if err := testenv.DeleteQueue(r.URL, q); err != nil {
		t.Fatal(err)
	}
	notConsuming(20 * time.Second)
	declare()
	works("queue deleted and recreated", 20*time.Second)

	if err := r.Freeze(); err != nil {
		t.Fatal(err)
	}
	// 1.5 times the heartbeat of 10 s, and the watchdog of the redial.
	notConsuming(25 * time.Second)
	if err := r.Thaw(); err != nil {
		t.Fatal(err)
	}
	works("freeze", 30*time.Second)

	d.stop()
	if _, total := handler.counts(); total != sent {
		t.Errorf("got %d requests for %d messages; nothing was ambiguous in this", total, sent)
	}
	if log, _ := os.ReadFile(r.Log); strings.Contains(string(log), "PRECONDITION_FAILED") || strings.Contains(string(log), "unknown delivery tag") {
		t.Error("the broker saw an acknowledgement in a session that was not its own")
	}
}

func TestTheDaemonWaitsForABrokerThatComesLater(t *testing.T) {
	t.Parallel()
	r := privateRabbit(t)
	if err := testenv.DeclareQueue(r.URL, "orders", nil); err != nil {
		t.Fatal(err)
	}
	messages, _ := orders("late", 10, 0)
	publish(t, r.URL, "orders", messages...)
	// Killed as it is, it may have forgotten a queue that is so young (see
	// testenv.Rabbit.Kill); stopped, it has written it down.
	if out, err := r.Ctl("stop_app"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := r.Kill(); err != nil {
		t.Fatal(err)
	}
	handler := newApp(t, nil)
	d := newDaemon(t, settings{amqp: r.URL, queue: "orders", handler: handler.URL})
	d.start()
	eventually(t, 10*time.Second, "the daemon is ready without a broker", func() bool { c, _ := d.get("/readyz"); return c == 200 })
	eventually(t, 10*time.Second, "/consuming names the consumer and why it does not", func() bool {
		c, body := d.get("/consuming")
		return c == 503 && strings.Contains(body, "billing") && strings.Contains(body, "refused")
	})
	if c, _ := d.get("/livez"); c != 200 {
		t.Errorf("/livez without a broker: got %d, want 200", c)
	}
	if err := r.Restart(); err != nil {
		t.Fatal(err)
	}
	eventually(t, 15*time.Second, "the messages are handled", func() bool { keys, _ := handler.counts(); return keys == 10 })
	d.stop()
}

// TestABrokerThatFreezesRightAfterTheDialIsLeft: no read deadline is armed by
// then, and nothing but the daemon's own watchdog would notice.
func TestABrokerThatFreezesRightAfterTheDialIsLeft(t *testing.T) {
	t.Parallel()
	amqpURL := testenv.AMQPURL(t)
	q := queue(t, amqpURL, "classic")
	proxy, err := testenv.NewProxy(hostOf(amqpURL))
	if err != nil {
		t.Fatal(err)
	}
	defer proxy.Close()
	proxy.Pause() // accepts, and passes nothing on
	handler := newApp(t, nil)
	d := newDaemon(t, settings{amqp: "amqp://guest:guest@" + proxy.Addr + "/", queue: q, handler: handler.URL})
	d.start()
	eventually(t, 15*time.Second, "the watchdog gives the dial up", func() bool {
		log, _ := os.ReadFile(d.log)
		return strings.Contains(string(log), "not consuming")
	})
	proxy.Resume()
	d.awaitConsuming(20 * time.Second)
	d.stop()
}

// TestACutConnectionNeverCostsOrDoublesAMessage cuts the connection again and
// again under load, while requests are in flight.
func TestACutConnectionNeverCostsOrDoublesAMessage(t *testing.T) {
	t.Parallel()
	amqpURL := testenv.AMQPURL(t)
	q := queue(t, amqpURL, "quorum")
	proxy, err := testenv.NewProxy(hostOf(amqpURL))
	if err != nil {
		t.Fatal(err)
	}
	defer proxy.Close()
	const n = 5000
	messages, _ := orders("cut", n, 10)
	publish(t, amqpURL, q, messages...)
	handler := newApp(t, nil)
	d := newDaemon(t, settings{
		amqp: "amqp://guest:guest@" + proxy.Addr + "/", queue: q, handler: handler.URL,
		consumer: "    concurrency: 16\n    prefetch: 100\n",
	})
	d.start()
	for i := 1; i <= 8; i++ {
		eventually(t, 30*time.Second, "it works until the next cut", func() bool { keys, _ := handler.counts(); return keys >= i*n/10 })
		proxy.Cut()
	}
	eventually(t, time.Minute, "every message is handled", func() bool { keys, _ := handler.counts(); return keys == n })
	d.awaitSettled(amqpURL, q, 20*time.Second)
	d.stop()
	// A request outlives its session and the redelivery joins it: nothing here
	// is ambiguous, so not one request is repeated.
	if _, total := handler.counts(); total != n {
		t.Errorf("got %d requests for %d messages", total, n)
	}
	if left, _, err := testenv.QueueState(amqpURL, q); left != 0 || err != nil {
		t.Errorf("left on the queue: %d (%v), want 0", left, err)
	}
}

func hostOf(amqpURL string) string {
	u, err := amqp.ParseURI(amqpURL)
	if err != nil {
		panic(err)
	}
	return u.Host + ":" + itoa(u.Port)
}
