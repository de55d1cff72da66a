package e2e

import (
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/inboxd/inboxd/internal/testenv"
)

// limitedQueue declares a quorum queue that drops a message after so many
// returns, for nobody to find: it has no dead-letter exchange.
func limitedQueue(t *testing.T, amqpURL string, limit int) string {
	t.Helper()
	name := testenv.UniqueName("e2e")
	args := amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int32(limit)}
	if err := testenv.DeclareQueue(amqpURL, name, args); err != nil {
		t.Fatalf("declaring a queue: %v", err)
	}
	t.Cleanup(func() { _ = testenv.DeleteQueue(amqpURL, name) })
	return name
}

// TestAMessageThatKillsTheDaemonIsParkedBeforeTheBrokerDropsIt: the daemon dies
// each time it is about to send it.
func TestAMessageThatKillsTheDaemonIsParkedBeforeTheBrokerDropsIt(t *testing.T) {
	t.Parallel()
	amqpURL := testenv.AMQPURL(t)
	stores(t, func(t *testing.T, storeURL func(*testing.T) string) {
		const limit = 5
		q := limitedQueue(t, amqpURL, limit)
		handler := newApp(t, nil)
		d := newDaemon(t, settings{
			amqp: amqpURL, queue: q, handler: handler.URL, store: storeURL(t),
			consumer: "    delivery_limit: 5\n",
		})
		publish(t, amqpURL, q, amqp.Publishing{MessageId: "poison", Body: []byte("{}")})
		lives := 0
		for ; lives <= limit; lives++ {
			d.start("INBOXD_FAILPOINT=before-request")
			parked := false
			eventually(t, 30*time.Second, "the daemon dies, or parks the message", func() bool {
				select {
				case <-d.end:
					return true
				default:
				}
				parked = d.outcome("parked") == 1
				return parked
			})
			if parked {
				break
			}
		}
		if lives != limit-2 {
			t.Errorf("parked after %d deaths, want limit - 2 = %d", lives, limit-2)
		}
		if got := d.metric("inboxd_parked_total", `reason="delivery_limit"`); got != 1 {
			t.Errorf("parked for its deliveries: got %v, want 1", got)
		}
		code, out, stderr := d.cli("parked", "list", "-c", d.config)
		if code != 0 || !strings.Contains(out, "poison") {
			t.Errorf("the message is not among the parked ones: exit %d\n%s%s", code, out, stderr)
		}
		d.stop()
		if left, _, err := testenv.QueueState(amqpURL, q); left != 0 || err != nil {
			t.Errorf("left on the queue: %d (%v), want 0", left, err)
		}
		if _, total := handler.counts(); total != 0 {
			t.Errorf("got %d requests, want none", total)
		}
	})
}

// TestAMessageThatKillsTheHandlerEndsParkedAndItsNeighboursAreProcessed: one in a
// thousand, on a queue that drops what is returned too often.
func TestAMessageThatKillsTheHandlerEndsParkedAndItsNeighboursAreProcessed(t *testing.T) {
	t.Parallel()
	amqpURL := testenv.AMQPURL(t)
	const n, limit, attempts = 1000, 5, 10
	q := limitedQueue(t, amqpURL, limit)
	handler := startFragile(t)
	d := newDaemon(t, settings{
		amqp: amqpURL, queue: q, handler: handler.url,
		consumer: "    delivery_limit: 5\n    retry: {initial: 50ms, max: 1s, max_attempts: 10, hold: 5m}\n",
	})
	messages, _ := orders("n", n, 0)
	messages[100].MessageId = "poison"
	publish(t, amqpURL, q, messages...)
	d.start()
	eventually(t, 3*time.Minute, "the message is parked and the others are processed", func() bool {
		return d.outcome("parked") == 1 && d.outcome("processed") == n-1
	})
	if got := d.metric("inboxd_parked_total", `reason="attempts"`); got != 1 {
		t.Errorf("parked for its attempts: got %v, want 1", got)
	}
	d.awaitSettled(amqpURL, q, 30*time.Second)
	d.stop()

	handler.mu.Lock()
	defer handler.mu.Unlock()
	// One more where a kept connection was cut and the request repeated at once.
	if handler.deaths < attempts || handler.deaths > 2*attempts {
		t.Errorf("the handler died %d times, want about max_attempts = %d", handler.deaths, attempts)
	}
	hit := 0
	for id, got := range handler.attempts {
		if id == "poison" {
			continue
		}
		if got > 1 {
			hit++
		}
		// Cut, perhaps repeated at once, and then alone.
		if got > 3 {
			t.Errorf("%s took %d requests, want 3 at most: it lost attempts to its neighbour", id, got)
		}
		if got := handler.deliveries[id]; got >= limit {
			t.Errorf("%s was delivered %d times before, want fewer than the limit", id, got)
		}
	}
	t.Logf("%d deaths hit %d neighbours", handler.deaths, hit)
	if len(handler.attempts) != n {
		t.Errorf("the handler saw %d messages, want %d", len(handler.attempts), n)
	}
}

// TestAMessageThatKillsTheDaemonDoesNotBurnItsNeighbours: they were in hand with
// it the first time, and never again.
func TestAMessageThatKillsTheDaemonDoesNotBurnItsNeighbours(t *testing.T) {
	t.Parallel()
	amqpURL := testenv.AMQPURL(t)
	stores(t, func(t *testing.T, storeURL func(*testing.T) string) {
		const n, limit = 1000, 5
		q := limitedQueue(t, amqpURL, limit)
		var d *daemon
		var mu sync.Mutex
		most := map[string]int{}
		handler := newApp(t, func(_ http.ResponseWriter, r *http.Request, key string, _ []byte) {
			count, _ := strconv.Atoi(r.Header.Get("Amqp-Header-x-delivery-count"))
			mu.Lock()
			most[key] = max(most[key], count)
			mu.Unlock()
			if key == "poison" {
				d.signal(syscall.SIGKILL)
			}
		})
		d = newDaemon(t, settings{
			amqp: amqpURL, queue: q, handler: handler.URL, store: storeURL(t),
			consumer: "    delivery_limit: 5\n",
		})
		messages, _ := orders("n", n, 0)
		messages[100].MessageId = "poison"
		publish(t, amqpURL, q, messages...)
		deaths, seen := -1, false
		for parked := false; !parked; deaths++ {
			if deaths > limit {
				t.Fatalf("died %d times, and the message is not parked", deaths)
			}
			d.start()
			eventually(t, time.Minute, "the daemon dies, or parks the message", func() bool {
				select {
				case <-d.end:
					return true
				default:
				}
				seen = seen || strings.Contains(httpGetOr(d.admin, "/api/status"), `"probation":{`)
				parked = d.outcome("parked") == 1
				return parked
			})
		}
		if deaths != limit-2 {
			t.Errorf("the daemon died %d times, want limit - 2 = %d", deaths, limit-2)
		}
		if !seen {
			t.Error("/api/status never told of the probation")
		}
		eventually(t, time.Minute, "every message is handled", func() bool { keys, _ := handler.counts(); return keys == n })
		d.awaitSettled(amqpURL, q, 30*time.Second)
		if got := d.metric("inboxd_parked_total", `reason="delivery_limit"`); got != 1 {
			t.Errorf("parked for their deliveries: got %v, want the one message", got)
		}
		d.stop()
		burnt := 0
		for id, count := range most {
			burnt += min(count, 1)
			// Once with the first death, and once more where it was in hand, not
			// started, when the probation ended.
			if id != "poison" && count > 2 {
				t.Errorf("%s was delivered %d times before, want 2 at most", id, count)
			}
		}
		if burnt < 2 {
			t.Errorf("%d messages came with a delivery count: the first death had more of them in hand", burnt)
		}
		log := d.readLog()
		for _, want := range []string{"probation: ", "probation is over"} {
			if !strings.Contains(log, want) {
				t.Errorf("the log does not say %q", want)
			}
		}
	})
}

// httpGetOr returns the body of what answers there, or "".
func httpGetOr(addr, path string) string {
	resp, err := http.Get("http://" + addr + path)
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	raw, _ := io.ReadAll(resp.Body)
	return string(raw)
}
