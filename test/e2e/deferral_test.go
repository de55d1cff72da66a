package e2e

import (
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/inboxd/inboxd/internal/testenv"
)

// TestADeferredMessageKeepsItsAttemptsAndItsDueTimeAcrossRestarts: the handler
// wants longer to pass than a message is held, and the daemon is killed and
// stopped while it waits in the store.
func TestADeferredMessageKeepsItsAttemptsAndItsDueTimeAcrossRestarts(t *testing.T) {
	t.Parallel()
	amqpURL := testenv.AMQPURL(t)
	stores(t, func(t *testing.T, storeURL func(*testing.T) string) {
		const wait = 4 * time.Second // four times the hold
		q := queue(t, amqpURL, "quorum")
		type request struct {
			number int
			at     time.Time
		}
		var mu sync.Mutex
		seen := map[string][]request{}
		handler := newApp(t, func(w http.ResponseWriter, r *http.Request, key string, _ []byte) {
			number, _ := strconv.Atoi(r.Header.Get("Inbox-Attempt"))
			mu.Lock()
			seen[key] = append(seen[key], request{number, time.Now()})
			mu.Unlock()
			if key == "recovers" && number == 3 {
				return
			}
			w.Header().Set("Retry-After", strconv.Itoa(int(wait/time.Second)))
			w.WriteHeader(http.StatusInternalServerError)
		})
		d := newDaemon(t, settings{
			amqp: amqpURL, queue: q, handler: handler.URL, store: storeURL(t),
			consumer: "    retry: {initial: 10ms, max: 100ms, max_attempts: 3, hold: 1s}\n",
		})
		var messages []amqp.Publishing
		for _, id := range []string{"recovers", "never"} {
			messages = append(messages, amqp.Publishing{MessageId: id, ContentType: "application/json", Body: []byte("{}")})
		}
		publish(t, amqpURL, q, messages...)
		for _, end := range []func(){d.kill, d.stop} {
			d.start()
			eventually(t, time.Minute, "both messages are deferred", func() bool { return d.outcome("deferred") == 2 })
			d.awaitSettled(amqpURL, q, 10*time.Second)
			end()
		}
		d.start()
		eventually(t, time.Minute, "one is processed and one parked", func() bool {
			return d.outcome("processed") == 1 && d.outcome("parked") == 1
		})
		if got := d.metric("inboxd_parked_total", `reason="attempts"`); got != 1 {
			t.Errorf("parked for its attempts: got %v, want 1", got)
		}
		d.stop()
		mu.Lock()
		defer mu.Unlock()
		for id, requests := range seen {
			if len(requests) != 3 {
				t.Errorf("%s: got %d requests, want 3", id, len(requests))
			}
			for i, r := range requests {
				if r.number != i+1 {
					t.Errorf("%s: request %d was numbered %d", id, i+1, r.number)
				}
				// The answer itself takes a moment, and stores keep milliseconds.
				if i > 0 {
					if gap := r.at.Sub(requests[i-1].at); gap < wait-50*time.Millisecond {
						t.Errorf("%s: request %d came after %v, want Retry-After = %v at least", id, i+1, gap, wait)
					}
				}
			}
		}
	})
}

// TestDeferredMessagesDoNotStarveTheQueue: hundreds of them fail again and again,
// and what is published meanwhile is processed all the same.
func TestDeferredMessagesDoNotStarveTheQueue(t *testing.T) {
	t.Parallel()
	amqpURL := testenv.AMQPURL(t)
	q := queue(t, amqpURL, "quorum")
	var healthy sync.Map // once there, everything is processed
	handler := newApp(t, func(w http.ResponseWriter, _ *http.Request, key string, _ []byte) {
		if _, ok := healthy.Load("yes"); !ok && key[0] == 'b' {
			w.WriteHeader(http.StatusConflict) // being processed: no attempt, again later
		}
	})
	d := newDaemon(t, settings{
		amqp: amqpURL, queue: q, handler: handler.URL,
		consumer: "    retry: {initial: 100ms, max: 200ms, max_attempts: 10, hold: 300ms}\n",
	})
	const n = 300
	busy, _ := orders("b", n, 0)
	good, _ := orders("good", n, 0)
	publish(t, amqpURL, q, busy...)
	d.start()
	eventually(t, time.Minute, "all of them were deferred", func() bool { keys, _ := handler.counts(); return keys == n && d.outcome("deferred") >= n })
	publish(t, amqpURL, q, good...)
	eventually(t, time.Minute, "the others are processed", func() bool { return d.outcome("processed") == n })
	healthy.Store("yes", true)
	eventually(t, time.Minute, "the deferred are processed", func() bool { return d.outcome("processed") == 2*n })
	d.awaitSettled(amqpURL, q, 10*time.Second)
	d.stop()
}
