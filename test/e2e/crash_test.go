package e2e

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/inboxd/inboxd/internal/testenv"
)

// effects is what the user's handler should be: key and effect are committed
// together, so that a second request with a known key has no second effect.
type effects struct {
	mu   sync.Mutex
	done map[string]bool
}

func (e *effects) answer(w http.ResponseWriter, _ *http.Request, key string, _ []byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.done == nil {
		e.done = map[string]bool{}
	}
	e.done[key] = true
	w.WriteHeader(http.StatusOK)
}

// TestKilledAtEachStepNothingIsLost kills the daemon exactly between two steps
// of the way of one message. What must be true afterwards differs by step only
// in the number of requests.
func TestKilledAtEachStepNothingIsLost(t *testing.T) {
	amqpURL := testenv.AMQPURL(t)
	stores(t, func(t *testing.T, storeURL func(*testing.T) string) {
		for point, requests := range map[string]int{
			"before-request": 1, // redelivered, clean
			"in-flight":      2, // the window that only the handler can close
			"after-2xx":      2, // the same window
			"after-record":   1, // the record is found
			"after-ack":      1,
		} {
			t.Run(point, func(t *testing.T) {
				t.Parallel()
				q := queue(t, amqpURL, "quorum")
				var d *daemon
				var once sync.Once
				handler := newApp(t, func(w http.ResponseWriter, r *http.Request, key string, body []byte) {
					if point == "in-flight" {
						once.Do(func() { d.signal(syscall.SIGKILL) })
					}
				})
				d = newDaemon(t, settings{amqp: amqpURL, queue: q, handler: handler.URL, store: storeURL(t)})
				messages, _ := orders("k", 1, 0)
				publish(t, amqpURL, q, messages...)
				d.start("INBOXD_FAILPOINT=" + point)
				if code := d.wait(20 * time.Second); code != -1 {
					t.Fatalf("exit code: got %d, want the end by SIGKILL", code)
				}
				d.start()
				want := 1 // the second life settles the message …
				if point == "after-ack" {
					want = 0 // … unless the first one did
				}
				d.awaitConsuming(20 * time.Second)
				eventually(t, 20*time.Second, "the message is settled", func() bool {
					return d.outcome("processed")+d.outcome("duplicate") == want
				})
				d.stop()
				if n := handler.seen("k-0"); n != requests {
					t.Errorf("requests: got %d, want %d", n, requests)
				}
				if left, _, err := testenv.QueueState(amqpURL, q); left != 0 || err != nil {
					t.Errorf("left on the queue: %d (%v), want 0", left, err)
				}
			})
		}
	})
}

func TestKilledFiftyTimesUnderLoadNothingIsLost(t *testing.T) {
	const n, kills, concurrency = 20_000, 50, 16
	amqpURL := testenv.AMQPURL(t)
	stores(t, func(t *testing.T, storeURL func(*testing.T) string) {
		q := queue(t, amqpURL, "classic")
		e := &effects{}
		handler := newApp(t, e.answer)
		d := newDaemon(t, settings{
			amqp: amqpURL, queue: q, handler: handler.URL, store: storeURL(t), fast: true,
			consumer: fmt.Sprintf("    concurrency: %d\n    prefetch: 64\n", concurrency),
		})
		messages, _ := orders("o", n, 10)
		publish(t, amqpURL, q, messages...)
		for range kills {
			_, before := handler.counts()
			d.start()
			// A random moment of its work, measured in requests rather than time.
			quota := before + 1 + rand.IntN(n/kills/2)
			eventually(t, 30*time.Second, "it works until it is killed", func() bool {
				keys, total := handler.counts()
				return total >= quota || keys == n
			})
			d.kill()
		}
		d.start()
		d.awaitConsuming(30 * time.Second)
		eventually(t, 2*time.Minute, "every message is handled", func() bool { keys, _ := handler.counts(); return keys == n })
		d.awaitSettled(amqpURL, q, 30*time.Second)
		d.stop()
		keys, total := handler.counts()
		if keys != n || len(e.done) != n {
			t.Errorf("got %d keys and %d effects, want %d of both", keys, len(e.done), n)
		}
		if extra := total - n; extra > kills*concurrency {
			t.Errorf("extra requests: got %d, want at most kills × concurrency = %d", extra, kills*concurrency)
		} else {
			t.Logf("%d extra requests in %d kills", extra, kills)
		}
		if left, _, err := testenv.QueueState(amqpURL, q); left != 0 || err != nil {
			t.Errorf("left on the queue: %d (%v), want 0", left, err)
		}
	})
}
