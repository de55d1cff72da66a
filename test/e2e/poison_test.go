package e2e

import (
	"strings"
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
		d := newDaemon(t, settings{amqp: amqpURL, queue: q, handler: handler.URL, store: storeURL(t),
			consumer: "    delivery_limit: 5\n"})
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
