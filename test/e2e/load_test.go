package e2e

import (
	"testing"
	"time"

	"github.com/inboxd/inboxd/internal/testenv"
)

// stores are the two ledgers, each with a URL of the test's own ("" is the
// daemon's own SQLite file).
func stores(t *testing.T, f func(t *testing.T, storeURL func(t *testing.T) string)) {
	t.Run("sqlite", func(t *testing.T) { f(t, func(*testing.T) string { return "" }) })
	t.Run("postgres", func(t *testing.T) { f(t, func(t *testing.T) string { return testenv.DatabaseURL(t) }) })
}

func TestEveryMessageOnceThroughEachStoreAndQueueType(t *testing.T) {
	const n, every = 50_000, 10
	amqpURL := testenv.AMQPURL(t)
	stores(t, func(t *testing.T, storeURL func(*testing.T) string) {
		for _, kind := range []string{"classic", "quorum"} {
			t.Run(kind, func(t *testing.T) {
				q := queue(t, amqpURL, kind)
				messages, bodies := orders("o", n, every)
				publish(t, amqpURL, q, messages...)
				handler := newApp(t, nil)
				d := newDaemon(t, settings{
					amqp: amqpURL, queue: q, handler: handler.URL, store: storeURL(t), fast: true,
					consumer: "    concurrency: 64\n    prefetch: 1000\n",
				})
				began := time.Now()
				d.start()
				settled := func() int { return d.outcome("processed") + d.outcome("duplicate") }
				eventually(t, 3*time.Minute, "every delivery is settled", func() bool { return settled() >= len(messages) })
				t.Logf("%d messages in %v", len(messages), time.Since(began).Round(time.Millisecond))

				keys, total := handler.counts()
				if keys != n || total != n {
					t.Errorf("the handler saw %d keys in %d requests, want %d in %d", keys, total, n, n)
				}
				for id, want := range bodies {
					if handler.bodies[id] != want {
						t.Fatalf("the body of %s is not the one published", id)
					}
				}
				for outcome, want := range map[string]int{
					"processed": n, "duplicate": len(messages) - n, "parked": 0, "deferred": 0, "returned": 0,
				} {
					if got := d.outcome(outcome); got != want {
						t.Errorf("deliveries with outcome %s: got %d, want %d", outcome, got, want)
					}
				}
				if got := int(d.metric("inboxd_forward_requests_total", `result="done"`)); got != n {
					t.Errorf("forward_requests_total done: got %d, want %d", got, n)
				}
				d.stop()
				// Only after the end is what was unacked back on the queue.
				if left, consumers, err := testenv.QueueState(amqpURL, q); left != 0 || consumers != 0 || err != nil {
					t.Errorf("left on the queue: %d messages, %d consumers (%v), want none", left, consumers, err)
				}
			})
		}
	})
}
